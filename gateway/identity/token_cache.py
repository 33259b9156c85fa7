"""Verified credentials, remembered for a moment. Keyed by SHA-256 of the whole credential, never by a part of it.

Owns bounds (entries, seconds, `exp`, key generation). Holds positive results only: a wrong credential costs its
sender a full check every time, and cannot push anybody out. Knows no rules.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable

from gateway.flow.context import Clock
from gateway.flow.values import Principal

Generation = Callable[[], int]


class TokenCache:
    """A bounded LRU of principals for one event loop. A hit costs one hash, one look-up and two clock reads."""

    def __init__(self, clock: Clock, *, entries: int, ttl_s: float) -> None:
        self._now = clock.now
        self._monotonic = clock.monotonic_s
        self._entries = entries
        self._ttl_s = ttl_s
        self._held: OrderedDict[bytes, tuple[Principal, float, float, int, Generation]] = OrderedDict()
        self.hits = 0
        self.misses = 0

    def get(self, digest: bytes) -> Principal | None:
        """The principal, while neither the entry, the credential nor the keys behind it have aged."""
        held = self._held.get(digest)
        if held is None:
            self.misses += 1
            return None
        principal, until_s, expires_s, generation, current = held
        if (
            self._monotonic() >= until_s
            or generation != current()
            or (expires_s != 0.0 and self._now().timestamp() >= expires_s)
        ):
            del self._held[digest]
            self.misses += 1
            return None
        self._held.move_to_end(digest)
        self.hits += 1
        return principal

    def put(
        self,
        digest: bytes,
        principal: Principal,
        *,
        expires_s: float,
        generation: int,
        current: Generation,
        ttl_s: float | None = None,
    ) -> None:
        """Keep `principal` at most `ttl_s` and never past `expires_s` (Unix time, 0 for no expiry)."""
        left = self._ttl_s if ttl_s is None else min(ttl_s, self._ttl_s)
        if expires_s != 0.0:
            left = min(left, expires_s - self._now().timestamp())
        if left <= 0 or self._entries <= 0:
            return
        self._held[digest] = (principal, self._monotonic() + left, expires_s, generation, current)
        self._held.move_to_end(digest)
        if len(self._held) > self._entries:
            self._held.popitem(last=False)

    def clear(self) -> None:
        self._held.clear()

    def __len__(self) -> int:
        return len(self._held)


def digest_of(credential: str) -> bytes:
    return hashlib.sha256(credential.encode("utf-8", errors="surrogatepass")).digest()
