"""The order in which a bearer token is examined, cheap and unauthenticated checks first (identity checklist).

syntax -> algorithm -> issuer -> provider -> type -> key -> signature -> claims -> principal. Owns that order and the
signature step; the rules of each step live in their own files. Caches nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from gateway.errors import Unauthenticated
from gateway.flow.context import Clock
from gateway.flow.values import Principal
from gateway.identity.algorithms import canonical
from gateway.identity.claim_rules import check_claims, check_header_type
from gateway.identity.claims import principal_from
from gateway.identity.jwks import KeySetManager
from gateway.identity.key_filter import VerifyingKey, secret_key
from gateway.identity.providers import Provider, ProviderTable
from gateway.identity.token_parser import CompactJws, malformed, parse_claims, parse_compact


@dataclass(frozen=True, slots=True)
class Verified:
    """A principal and what its validity hangs on."""

    principal: Principal
    provider: Provider
    generation: int
    expires_s: float
    """Unix time of `exp`."""
    findings: tuple[str, ...] = ()


def fingerprint_of(digest: bytes) -> str:
    """Log-safe name of a credential: 64 bits of the SHA-256 of the whole of it."""
    return digest[:8].hex()


def verify_signature(jws: CompactJws, key: VerifyingKey) -> None:
    """The header must name the key's own algorithm, and the signature must be the key's.

    Raises `Unauthenticated` `alg_not_allowed` (before any arithmetic) or `invalid_token`.
    """
    if canonical(jws.algorithm) != key.algorithm:
        _algorithm_refused("not the algorithm of the key")
    if not key.verify(jws.signing_input, jws.signature):
        raise Unauthenticated(
            "The token's signature is not valid.",
            hint="get a fresh token from your identity provider",
            detail=f"signature, kid {key.kid!r}",
        )


class TokenVerifier:
    """Verifies tokens against the configured providers. One instance per process."""

    def __init__(
        self,
        providers: ProviderTable,
        key_sets: Mapping[str, KeySetManager],
        clock: Clock,
        *,
        max_token_bytes: int,
    ) -> None:
        self._providers = providers
        self._key_sets = key_sets
        self._clock = clock
        self._max_bytes = max_token_bytes

    async def verify(self, token: str) -> Verified:
        """Raises `Unauthenticated`, `NotPermitted` or `Unavailable`; never anything else, whatever `token` is."""
        jws = parse_compact(token, max_bytes=self._max_bytes)
        if jws.algorithm not in self._providers.algorithms:
            _algorithm_refused("not allowed by any provider")
        if not jws.signature:
            malformed("empty signature")
        claims = parse_claims(jws.payload)
        provider = self._choose(claims.get("iss"), present="iss" in claims)
        if jws.algorithm not in provider.algorithms:
            _algorithm_refused(f"not allowed by {provider.name}")
        check_header_type(provider, jws.header)
        key, generation = await self._key(provider, jws)
        verify_signature(jws, key)
        check_claims(provider, claims, self._clock.now().timestamp())
        fingerprint = fingerprint_of(hashlib.sha256(token.encode("ascii")).digest())
        return Verified(
            principal=principal_from(provider, claims, fingerprint=fingerprint),
            provider=provider,
            generation=generation,
            expires_s=float(claims["exp"]),
            findings=jws.findings,
        )

    def _choose(self, issuer: object, *, present: bool) -> Provider:
        if present and not isinstance(issuer, str):
            malformed("iss is not a string")
        provider = self._providers.get(issuer) if isinstance(issuer, str) else None
        if provider is None:
            raise Unauthenticated(
                "The token comes from an issuer this gateway does not trust.",
                code="wrong_issuer",
                hint="sign in at the identity provider configured for this gateway",
                detail=f"iss {str(issuer)[:200]!r}",
            )
        return provider

    async def _key(self, provider: Provider, jws: CompactJws) -> tuple[VerifyingKey, int]:
        if provider.secret is not None:
            return secret_key(provider.secret, jws.algorithm), 0
        keys = self._key_sets[provider.name]
        key = await keys.key_for(jws.kid)
        return key, keys.generation


def _algorithm_refused(detail: str) -> NoReturn:
    raise Unauthenticated(
        "The token is signed with an algorithm this gateway does not accept.",
        code="alg_not_allowed",
        hint="let your identity provider sign access tokens with RS256, PS256, ES256 or EdDSA",
        detail=detail,
    )
