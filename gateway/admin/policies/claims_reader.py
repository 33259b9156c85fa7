"""Claims as a token would carry them, read as if they were verified; for explanations only, never for access."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.errors import InvalidRequest, Unauthenticated
from gateway.flow.context import Clock
from gateway.flow.values import Principal
from gateway.identity.claims import principal_from
from gateway.identity.providers import ProviderTable
from gateway.settings import IdentitySettings

HOUR_S = 3600


class ClaimsReader:
    """`authz.ReadClaims` with the mapping of the configured providers."""

    def __init__(self, settings: IdentitySettings, clock: Clock) -> None:
        self._providers = ProviderTable(settings.providers)
        self._clock = clock

    def __call__(self, claims: Mapping[str, Any]) -> Principal:
        """`iat` and `exp` may be left out. Raises `InvalidRequest` (400 `invalid_claims`)."""
        issuer = claims.get("iss")
        provider = self._providers.get(issuer) if isinstance(issuer, str) else None
        if provider is None:
            raise InvalidRequest(
                "`iss` names no configured identity provider.", code="invalid_claims", param="claims.iss"
            )
        now = int(self._clock.now().timestamp())
        timed = {**claims, "iat": now, "exp": now + HOUR_S}
        try:
            return principal_from(provider, timed, fingerprint="explained")
        except Unauthenticated as error:
            raise InvalidRequest(
                error.message, code="invalid_claims", param="claims", hint=error.hint, detail=error.detail
            ) from None
