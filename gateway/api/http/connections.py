"""Every connection of one listener: who may come in, who has to go for it, and one clock for all of them.

Whoever holds connections without a whole request in them can lock nobody out: a new connection takes the place of the
one that has waited longest. An address that has its share makes room among its own.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gateway.api.http.connection_limits import ConnectionLimits, Mark, Phase, next_mark, source


class Held(Protocol):
    """The state of a connection, as the registry reads it."""

    peer: str | None
    phase: Phase
    since_s: float

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that still wait for the reader."""

    @property
    def sent_bytes(self) -> int:
        """Bytes that the system has taken so far."""

    def expire(self) -> bool:
        """Its phase has lasted too long. False: it stays, because it is not the client who is late."""

    def evict(self) -> None:
        """Its place is needed."""

    def drop(self) -> None:
        """Its reader is too slow: close at once and forget what is unsent."""


class Waiting(OrderedDict[Held, None]):
    """Connections without a whole request, the one that has waited longest first."""


@dataclass(slots=True)
class Source:
    """The connections of one address."""

    total: int = 0
    waiting: Waiting = field(default_factory=Waiting)


class Connections:
    """`trusted` tells addresses of reverse proxies, which stand for many callers and have no bound of their own."""

    def __init__(self, limits: ConnectionLimits, trusted: Callable[[str], bool] = lambda _: False) -> None:
        self.limits = limits
        self.leaving = False
        """The server stops: no connection outlives its request, and readers get little time."""
        self._trusted = trusted
        self._open: dict[Held, str | None] = {}
        self._marks: dict[Held, Mark] = {}
        self._sources: dict[str, Source] = {}
        self._waiting = Waiting()
        self._timer: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0
        self._refused = self._evicted = self._expired = self._unread = 0

    def state(self) -> Mapping[str, object]:
        """For metrics."""
        return {
            "open": len(self._open),
            "waiting": len(self._waiting),
            "refused": self._refused,
            "evicted": self._evicted,
            "expired": self._expired,
            "unread_answers": self._unread,
            "unsent_bytes": self._unsent_bytes,
        }

    def has_room(self) -> bool:
        return len(self._open) < self.limits.max_connections or self._longest_waiting(self._waiting) is not None

    def admit(self, connection: Held) -> bool:
        """Take it in as waiting, if need be in the place of another; False: every other one is at work or new."""
        peer = connection.peer
        key = None if peer is None or self._trusted(peer) else source(peer)
        of_address = None if key is None else self._sources.get(key)
        if of_address is not None and of_address.total >= self.limits.max_connections_per_address:
            room = self._evict(of_address.waiting)
        else:
            room = len(self._open) < self.limits.max_connections or self._evict(self._waiting)
        if not room:
            self._refused += 1
            return False
        self._open[connection] = key
        if key is not None:
            self._sources.setdefault(key, Source()).total += 1
        self.moved(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.limits.sweep_s, self._sweep)
        return True

    def moved(self, connection: Held) -> None:
        """Its phase has changed."""
        if connection not in self._open:
            return
        key = self._open[connection]
        _move(connection, self._waiting)
        if key is not None:
            _move(connection, self._sources[key].waiting)

    def leave(self, connection: Held) -> None:
        """It is closed, or as good as. May be called again."""
        if connection not in self._open:
            return
        key = self._open.pop(connection)
        self._marks.pop(connection, None)
        self._waiting.pop(connection, None)
        if key is not None:
            of_address = self._sources[key]
            of_address.waiting.pop(connection, None)
            of_address.total -= 1
            if not of_address.total:
                del self._sources[key]

    def _longest_waiting(self, waiting: Waiting) -> Held | None:
        oldest = next(iter(waiting), None)
        if oldest is None or asyncio.get_running_loop().time() - oldest.since_s < self.limits.evict_after_s:
            return None
        return oldest

    def _evict(self, waiting: Waiting) -> bool:
        victim = self._longest_waiting(waiting)
        if victim is None:
            return False
        self._evicted += 1
        self.leave(victim)
        victim.evict()
        return True

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.limits.sweep_s, self._sweep) if self._open else None
        now_s, unsent = loop.time(), 0
        limits = self.limits
        window_s = limits.leaving_write_timeout_s if self.leaving else limits.write_timeout_s
        for connection in tuple(self._open):
            waits = connection.unsent_bytes
            if waits or connection in self._marks:
                mark, slow = next_mark(
                    self._marks.pop(connection, None),
                    unsent_bytes=waits,
                    sent_bytes=connection.sent_bytes,
                    now_s=now_s,
                    window_s=window_s,
                    min_bytes_s=limits.min_read_bytes_s,
                )
                if slow:
                    self._drop(connection)
                    continue
                if mark is not None:
                    self._marks[connection] = mark
                unsent += waits
            bound_s = limits.phase_s(connection.phase)
            if bound_s is not None and now_s - connection.since_s > bound_s and connection.expire():
                self._expired += 1
        self._unsent_bytes = self._drop_beyond(unsent)

    def _drop_beyond(self, unsent: int) -> int:
        """Cut off the readers that have made no progress for longest until the rest fits; what is left unsent."""
        if unsent > self.limits.max_unsent_bytes:
            for connection, _ in sorted(self._marks.items(), key=lambda item: item[1].at_s):
                unsent -= connection.unsent_bytes
                self._drop(connection)
                if unsent <= self.limits.max_unsent_bytes:
                    break
        return unsent

    def _drop(self, connection: Held) -> None:
        self._unread += 1
        self.leave(connection)
        connection.drop()


def _move(connection: Held, waiting: Waiting) -> None:
    """To the end, or out while it is at work."""
    waiting.pop(connection, None)
    if connection.phase is not Phase.BUSY:
        waiting[connection] = None
