"""The key set of one provider, kept fresh without ever letting a token or an outage drive the traffic.

Owns when to fetch: a background refresh before the set ages, one forced refresh per cooldown for an unknown `kid`,
back-off while the provider is down, the last good set until it is too old. Knows fetching only as a `KeySource`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import random
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from gateway.errors import Unauthenticated, Unavailable
from gateway.flow.context import Clock
from gateway.identity.key_filter import KeyFinding, KeySet, VerifyingKey, filter_keys
from gateway.identity.key_source import FetchError, KeySource
from gateway.identity.providers import Provider
from gateway.settings import IdentitySettings

_log = logging.getLogger("esclusa.identity.keys")

KID_WAIT_S = 3.0
NEGATIVE_ENTRIES = 1024
NEGATIVE_TTL_S = 300.0
MIN_TTL_S = 60.0
MAX_BACKOFF_S = 60.0


@dataclass(frozen=True, slots=True)
class KeySetStatus:
    """For readiness and metrics. Ages in seconds; `age_s` is None while no set was ever had."""

    provider: str
    keys: int
    age_s: float | None
    stale_s: float
    failures_in_a_row: int
    fetches: dict[str, int] = field(default_factory=dict)
    fetch_failures: int = 0
    last_error: str | None = None
    findings: tuple[KeyFinding, ...] = ()

    @property
    def ready(self) -> bool:
        return self.age_s is not None


class KeySetManager:
    """Keys of one provider. All methods belong to one event loop; nothing here blocks it."""

    def __init__(
        self,
        provider: Provider,
        source: KeySource,
        settings: IdentitySettings,
        clock: Clock,
        *,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._provider = provider
        self.source = source
        self._settings = settings
        self._clock = clock
        self._jitter = jitter
        self._keys: KeySet | None = None
        self._fetched_at = 0.0
        self._ttl_s = settings.jwks_refresh_s
        self._due_at = clock.monotonic_s()
        self._last_attempt: float | None = None
        self._last_forced: float | None = None
        self._failures = 0
        self._failed_total = 0
        self._last_error: str | None = None
        self._fetches: Counter[str] = Counter()
        self._inflight: asyncio.Task[bool] | None = None
        self._negative: OrderedDict[str, float] = OrderedDict()
        self.generation = 0
        """Grows with every change of the set; verified tokens of an older generation are verified again."""

    def current_generation(self) -> int:
        return self.generation

    # ------------------------------------------------------------------------------------------- lookup

    async def key_for(self, kid: str | None) -> VerifyingKey:
        """The key named `kid`; may wait up to 3 s for one shared refresh.

        Raises `Unauthenticated` `unknown_key`, or `Unavailable` `idp_unavailable` when the provider cannot be asked:
        no set was ever had, the last one is too old, or the key may have been published while it is down.
        """
        if self._keys is None or self._too_old():
            await self._wait_for(self._refresh_when_due())
            if self._keys is None or self._too_old():
                self._unavailable("no usable key set")
        found = self._find(kid)
        if found is not None:
            return found
        if kid is None:
            self._unknown("no kid")
        if self._inflight is not None:
            await self._wait_for(self._inflight)
            found = self._find(kid)
        if found is None and self._may_force(kid):
            self._last_forced = self._clock.monotonic_s()
            finished = await self._wait_for(self._start("unknown_kid"))
            found = self._find(kid)
            if found is None and finished and self._failures == 0:
                self._remember_unknown(kid)
        if found is not None:
            return found
        if self._inflight is not None or self._failures > 0:
            self._unavailable("unknown kid while the provider does not answer")
        self._unknown("kid is not in the key set")

    def _find(self, kid: str | None) -> VerifyingKey | None:
        keys = self._keys
        if keys is None:
            return None
        if kid is None:
            return keys.only if self._provider.settings.single_key_ok else None
        return keys.named.get(kid)

    def _may_force(self, kid: str) -> bool:
        now = self._clock.monotonic_s()
        if self._negative.get(kid, now) > now:
            return False
        cooldown = self._settings.jwks_cooldown_s
        if self._last_forced is not None and now - self._last_forced < cooldown:
            return False
        # While the provider fails, the background loop is already asking it as often as is decent.
        return not (self._failures and self._last_attempt is not None and now - self._last_attempt < cooldown)

    def _remember_unknown(self, kid: str) -> None:
        self._negative[kid] = self._clock.monotonic_s() + NEGATIVE_TTL_S
        self._negative.move_to_end(kid)
        if len(self._negative) > NEGATIVE_ENTRIES:
            self._negative.popitem(last=False)

    def _too_old(self) -> bool:
        return self._clock.monotonic_s() - self._fetched_at > self._settings.jwks_max_stale_s

    def _unknown(self, detail: str) -> NoReturn:
        raise Unauthenticated(
            "The token was signed with a key this gateway does not know.",
            code="unknown_key",
            hint="get a fresh token from your identity provider",
            detail=f"{self._provider.name}: {detail}",
        )

    def _unavailable(self, detail: str) -> NoReturn:
        raise Unavailable(
            "The keys of the identity provider cannot be fetched at the moment.",
            code="idp_unavailable",
            hint="retry; your token may be perfectly valid",
            retry_after_s=5,
            detail=f"{self._provider.name}: {detail}; {self._last_error}",
        )

    # ------------------------------------------------------------------------------------------ refresh

    async def run(self) -> None:
        """Refresh for ever, ahead of the set's age. Ends only by cancellation."""
        while True:
            await asyncio.sleep(self.due_in_s())
            if self.due_in_s() <= 0:
                await self.refresh("background")

    def due_in_s(self) -> float:
        """Seconds until the next background refresh; 0 when it is due."""
        return max(0.0, self._due_at - self._clock.monotonic_s())

    async def refresh(self, reason: str) -> bool:
        """Fetch now, or join the fetch that is under way. True when a usable set arrived."""
        task = self._start(reason)
        await asyncio.wait({task})
        return not task.cancelled() and task.result()

    async def close(self) -> None:
        task = self._inflight
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    def _refresh_when_due(self) -> asyncio.Task[bool] | None:
        return self._start("first") if self._inflight is None and self.due_in_s() <= 0 else self._inflight

    def _start(self, reason: str) -> asyncio.Task[bool]:
        if self._inflight is None:
            self._fetches[reason] += 1
            self._inflight = asyncio.create_task(self._fetch(), name=f"jwks {self._provider.name}")
        return self._inflight

    @staticmethod
    async def _wait_for(task: asyncio.Task[bool] | None) -> bool:
        """Wait for a shared fetch without owning it. False when it takes longer than a caller may wait."""
        if task is None:
            return False
        done, _ = await asyncio.wait({task}, timeout=KID_WAIT_S)
        return bool(done)

    async def _fetch(self) -> bool:
        self._last_attempt = self._clock.monotonic_s()
        try:
            document, max_age_s = await self.source.load()
            keys = filter_keys(
                document,
                algorithms=self._provider.algorithms,
                default_algorithm=self._default_algorithm(),
                issuer=self._provider.issuer,
            )
            if len(keys) == 0:
                reasons = sorted({finding.reason for finding in keys.findings}) or ["the set is empty"]
                raise FetchError("no usable key: " + "; ".join(reasons[:4]))
        except FetchError as error:
            self._fail(str(error))
            return False
        finally:
            self._inflight = None
        self._accept(keys, hashlib.sha256(json.dumps(document, sort_keys=True).encode()).digest(), max_age_s)
        return True

    def _default_algorithm(self) -> str | None:
        configured = self._provider.settings.default_key_algorithm
        if configured is None and self._provider.type == "entra" and "RS256" in self._provider.algorithms:
            return "RS256"  # Entra's keys carry no `alg`, and RS256 is all it signs with
        return configured

    def _accept(self, keys: KeySet, fingerprint: bytes, max_age_s: float | None) -> None:
        now = self._clock.monotonic_s()
        if self._keys is None or self._keys.fingerprint != fingerprint:
            self.generation += 1
            self._negative.clear()
            for finding in keys.findings:
                _log.log(
                    logging.WARNING if finding.alert else logging.INFO,
                    "key dropped: provider=%s kid=%r reason=%s",
                    self._provider.name,
                    finding.kid,
                    finding.reason,
                )
        self._keys = KeySet(keys.named, keys.unnamed, keys.findings, fingerprint)
        self._fetched_at = now
        limit = self._settings.jwks_refresh_s
        self._ttl_s = limit if max_age_s is None else min(limit, max(max_age_s, MIN_TTL_S))
        self._due_at = now + self._ttl_s * (0.8 - 0.1 * self._jitter())
        self._failures = 0
        self._last_error = None

    def _fail(self, error: str) -> None:
        self._failures += 1
        self._failed_total += 1
        self._last_error = error
        backoff = min(MAX_BACKOFF_S, 2.0 ** min(self._failures - 1, 10))
        self._due_at = self._clock.monotonic_s() + backoff * (0.75 + 0.5 * self._jitter())
        _log.warning("key set not refreshed: provider=%s failures=%d: %s", self._provider.name, self._failures, error)

    def status(self) -> KeySetStatus:
        age = None if self._keys is None else self._clock.monotonic_s() - self._fetched_at
        return KeySetStatus(
            provider=self._provider.name,
            keys=0 if self._keys is None else len(self._keys),
            age_s=age,
            stale_s=0.0 if age is None else max(0.0, age - self._ttl_s),
            failures_in_a_row=self._failures,
            fetches=dict(self._fetches),
            fetch_failures=self._failed_total,
            last_error=self._last_error,
            findings=() if self._keys is None else self._keys.findings,
        )
