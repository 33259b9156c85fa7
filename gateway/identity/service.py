"""`IdentityService`: a credential in, a verified `Principal` out; and whether that principal is revoked since.

Owns the wiring of parser, key sets, verifier, cache, API keys and revocations, and the tasks that keep them fresh.
Decides who somebody is, never what they may do.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gateway.errors import GatewayError, Unauthenticated
from gateway.flow.context import Clock, RequestContext
from gateway.flow.values import Credential, Principal
from gateway.identity.api_keys import PROVIDER, ApiKeyRepository, ApiKeyVerifier, looks_like_api_key
from gateway.identity.current_rights import CurrentRights
from gateway.identity.jwks import KeySetManager, KeySetStatus
from gateway.identity.key_lookup import KeyLookup
from gateway.identity.key_source import FileKeySource, HttpKeyFetcher, HttpKeySource, KeyFetcher, KeySource
from gateway.identity.local_copies import IdentityCopies
from gateway.identity.providers import Provider, ProviderTable
from gateway.identity.revocations import RevocationList
from gateway.identity.token_cache import TokenCache, digest_of
from gateway.identity.verifier import TokenVerifier, Verified
from gateway.settings import IdentitySettings

_log = logging.getLogger("esclusa.identity")


@dataclass(frozen=True, slots=True)
class IdentityStatus:
    """For `/readyz` and metrics; no I/O."""

    ready: bool
    key_sets: tuple[KeySetStatus, ...]
    cache_entries: int
    cache_hits: int
    cache_misses: int
    refusals: Mapping[str, int] = field(default_factory=dict)
    revocations: int = 0
    revocations_age_s: float | None = None
    stale_keys_served: int = 0


class IdentityService:
    """Implements `flow.ports.Authenticator`. `start` before use, `close` at the end; one event loop.

    `transport` fetches key sets (default: httpx2); `key_sources` gives a provider's keys in-process, by provider name.
    Without `keys`, API keys are refused; without `revocations`, nothing is ever revoked.
    """

    def __init__(
        self,
        settings: IdentitySettings,
        *,
        clock: Clock,
        transport: KeyFetcher | None = None,
        keys: ApiKeyRepository | None = None,
        revocations: RevocationList | None = None,
        key_sources: Mapping[str, KeySource] | None = None,
        copies: IdentityCopies | None = None,
    ) -> None:
        self._settings = settings
        self._providers = ProviderTable(settings.providers)
        self._fetcher: KeyFetcher = (
            transport
            if transport is not None
            else HttpKeyFetcher(ca_file=settings.jwks_ca_file, proxy=settings.jwks_proxy)
        )
        self._key_sets = {
            provider.name: KeySetManager(
                provider, (key_sources or {}).get(provider.name) or self._source(provider), settings, clock
            )
            for provider in self._providers.all()
            if provider.secret is None
        }
        self._fetches = any(isinstance(manager.source, HttpKeySource) for manager in self._key_sets.values())
        self._verifier = TokenVerifier(self._providers, self._key_sets, clock, max_token_bytes=settings.max_token_bytes)
        self._cache = TokenCache(clock, entries=settings.token_cache_entries, ttl_s=settings.token_cache_ttl_s)
        self._revocations = revocations
        self._lookup = None if keys is None else KeyLookup(keys, settings, clock, copies=copies, changes=self._changes)
        self._api_keys = ApiKeyVerifier(self._lookup, settings, clock) if self._lookup is not None else None
        self._present = CurrentRights(keys, clock) if keys is not None else None
        self._refusals: Counter[str] = Counter()
        self._tasks: list[asyncio.Task[None]] = []

    def _source(self, provider: Provider) -> KeySource:
        if provider.settings.jwks_file is not None:
            return FileKeySource(provider.settings.jwks_file, max_bytes=self._settings.jwks_max_bytes)
        return HttpKeySource(
            provider,
            self._fetcher,
            timeout_s=self._settings.jwks_timeout_s,
            max_bytes=self._settings.jwks_max_bytes,
        )

    # ------------------------------------------------------------------------------------------- lifetime

    async def start(self) -> None:
        """Fetch every key set once, in parallel and for a bounded time; a provider that is down delays nothing else.

        Raises `ConfigError` when key sets could never be fetched (roots or proxy that cannot be used).
        """
        if isinstance(self._fetcher, HttpKeyFetcher) and self._fetches:
            self._fetcher.check()
        await asyncio.gather(*(manager.refresh("start") for manager in self._key_sets.values()))
        self._tasks = [
            asyncio.create_task(manager.run(), name=f"jwks refresh {name}") for name, manager in self._key_sets.items()
        ]
        if self._lookup is not None:
            await self._lookup.start()
        if self._revocations is not None:
            for follower in (self._present, self._lookup):
                if follower is not None:
                    self._revocations.follow(follower.refresh)
            await self._revocations.start()
        if self._api_keys is not None:
            self._tasks.append(asyncio.create_task(self._api_keys.run(), name="api key last use"))
        for task in self._tasks:
            task.add_done_callback(_report)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        for manager in self._key_sets.values():
            await manager.close()
        if self._revocations is not None:
            await self._revocations.close()
        if self._api_keys is not None:
            await self._api_keys.flush()
        if self._lookup is not None:
            await self._lookup.close()
        await self._fetcher.aclose()

    # -------------------------------------------------------------------------------------- authentication

    async def authenticate(self, credential: Credential, context: RequestContext) -> Principal:
        """See `flow.ports.Authenticator`. A cache hit makes no I/O and still asks the list of revocations."""
        value = credential.value
        if len(value) > self._settings.max_token_bytes:
            self._refusals["invalid_token"] += 1
            raise Unauthenticated("The token is too long.", detail=f"{len(value)} characters")
        digest = digest_of(value)
        principal = self._cache.get(digest)
        if principal is None:
            try:
                principal = await self._verify(value, digest, context)
            except GatewayError as error:
                self._refusals[error.code] += 1
                raise
        self._require_unrevoked(principal)
        return principal

    def _require_unrevoked(self, principal: Principal) -> None:
        if self._revocations is None:
            return
        self._revocations.check_fresh()
        if self._revocations.contains(principal):
            self._refusals["revoked"] += 1
            raise Unauthenticated(
                "This credential has been revoked.",
                code="token_revoked",
                hint="sign in again, or ask an administrator why",
                detail=f"credential {principal.credential_id or principal.credential_fingerprint}",
            )

    async def _verify(self, value: str, digest: bytes, context: RequestContext) -> Principal:
        if looks_like_api_key(value):
            if self._api_keys is None:
                raise Unauthenticated("API keys are not in use here.", hint="send a token of your identity provider")
            changes = self._changes
            generation = changes()  # before the database is read: a change meanwhile must not be outlived
            principal = await self._api_keys.verify(value)
            expires = principal.expires_at
            self._cache.put(
                digest,
                principal,
                expires_s=0.0 if expires is None else expires.timestamp(),
                generation=generation,
                current=changes,
                ttl_s=self._settings.api_key_cache_ttl_s,
            )
            return principal
        verified = await self._verifier.verify(value)
        self._note(verified, context)
        provider = verified.provider
        manager = self._key_sets.get(provider.name)
        self._cache.put(
            digest,
            verified.principal,
            expires_s=verified.expires_s,
            generation=verified.generation,
            current=_never_changes if manager is None else manager.current_generation,
        )
        return verified.principal

    def _changes(self) -> int:
        return 0 if self._revocations is None else self._revocations.changes()

    async def renewed(self, principal: Principal) -> Principal:
        """The same caller again without its credential, for a request that has waited: with the rights it has now.

        Of an API key everything is read again. A token's own end is not asked for: it lets its holder leave work
        behind, which runs until the holder, the token or its issuer is revoked, or its provider is no longer trusted.
        Raises `Unauthenticated` or `Unavailable`.
        """
        if principal.provider == PROVIDER:
            if self._api_keys is None:
                raise Unauthenticated("API keys are not in use here.")
            principal = await self._api_keys.again(principal.credential_id or "")
        elif self._providers.get(principal.issuer) is None:
            raise Unauthenticated("The issuer of this token is no longer trusted.")
        self._require_unrevoked(principal)
        return principal

    def is_revoked(self, principal: Principal) -> bool:
        """Local, a few dictionary look-ups: asked between the chunks of a running answer."""
        return self._revocations is not None and self._revocations.contains(principal)

    def current(self, principal: Principal) -> Principal:
        """Local: the same caller with the rights it has now, which an account's administrator may have narrowed."""
        return principal if self._present is None else self._present.of(principal)

    def forget(self) -> None:
        """Drop every remembered verification: after a change of providers, keys or service accounts."""
        self._cache.clear()

    # --------------------------------------------------------------------------------------------- status

    def status(self) -> IdentityStatus:
        key_sets = tuple(manager.status() for manager in self._key_sets.values())
        revocations = self._revocations
        return IdentityStatus(
            ready=self.ready,
            key_sets=key_sets,
            cache_entries=len(self._cache),
            cache_hits=self._cache.hits,
            cache_misses=self._cache.misses,
            refusals=dict(self._refusals),
            revocations=0 if revocations is None else len(revocations),
            revocations_age_s=None if revocations is None else revocations.age_s(),
            stale_keys_served=0 if self._lookup is None else self._lookup.served_stale,
        )

    @property
    def ready(self) -> bool:
        """Can anybody be let in? Not while a provider never had a key set, nor without a list of revocations."""
        return self.state in ("ready", "degraded")

    @property
    def state(self) -> Literal["ready", "degraded", "no_keys", "no_revocations"]:
        """No I/O. `degraded`: the database is away, and what was last known of revocations and API keys serves."""
        if not all(manager.status().ready for manager in self._key_sets.values()):
            return "no_keys"
        revocations = self._revocations
        if revocations is not None and not revocations.usable:
            return "no_revocations"
        behind = revocations is not None and not revocations.current
        return "degraded" if behind or (self._lookup is not None and self._lookup.away) else "ready"

    @staticmethod
    def _note(verified: Verified, context: RequestContext) -> None:
        if verified.findings:
            _log.warning(
                "token brought its own key material, ignored: request=%s provider=%s members=%s",
                context.request_id,
                verified.provider.name,
                ",".join(verified.findings),
            )


def _never_changes() -> int:
    return 0


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("background task `%s` ended", task.get_name(), exc_info=task.exception())
