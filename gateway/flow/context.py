"""The context of a request: clock, ids, client, deadline. Knows nothing of HTTP frameworks."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol
from uuid import UUID

RANDOM_BYTES = 10


class Clock(Protocol):
    """Time as an argument, so that tests decide it."""

    def now(self) -> datetime:
        """Wall time, timezone-aware UTC."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never go backwards; only differences mean anything."""
        ...


class IdSource(Protocol):
    def uuid7(self) -> UUID:
        """A fresh time-ordered UUID (RFC 9562 section 5.7)."""
        ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        return time.monotonic()


class SystemIds:
    """Random bits come from the kernel in blocks: a system call per id would be most of its price."""

    def __init__(self) -> None:
        self._random = b""
        self._at = 0

    def uuid7(self) -> UUID:
        if self._at + RANDOM_BYTES > len(self._random):
            self._random, self._at = os.urandom(RANDOM_BYTES * 256), 0
        bits = int.from_bytes(self._random[self._at : self._at + RANDOM_BYTES], "big")
        self._at += RANDOM_BYTES
        value = (time.time_ns() // 1_000_000 & (1 << 48) - 1) << 80 | bits
        value = value & ~(0xF << 76) | 0x7 << 76  # version 7
        value = value & ~(0x3 << 62) | 0x2 << 62  # RFC 9562 variant
        return UUID(int=value)


@dataclass(frozen=True, slots=True)
class Client:
    """What the caller's connection says about itself. All of it is a label, never a key (T31)."""

    ip: str | None = None
    user_agent: str | None = None
    client_request_id: str | None = None
    forwarded_for: str | None = None


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Made once per request, before anything is decided.

    `deadline_s` and `started_s` are on the clock of `Clock.monotonic_s`.
    """

    request_id: UUID
    received_at: datetime
    started_s: float
    route: str
    method: str = "POST"
    client: Client = field(default_factory=Client)
    trace_id: str | None = None
    deadline_s: float | None = None
    data_class: str | None = None
    purpose: str | None = None
    background: bool = False
    """Nobody waits for the answer: it runs behind those for which somebody does."""
