"""Limits of a connection in time, bytes and number, and the pure decisions about it. Knows no sockets."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from ipaddress import IPv6Network

from gateway.api.http.proxies import parse_hop


class Phase(Enum):
    HEAD = "head"
    """Waits for a whole header block."""
    BODY = "body"
    """The headers are here, the body is not."""
    BUSY = "busy"
    """A whole request is being answered."""
    IDLE = "idle"
    """Between two requests, not a byte of the next one has come."""
    LINGER = "linger"
    """Answered and half closed; what still comes is thrown away, so that the client can read the answer."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Seconds, bytes and numbers. A phase has one bound however many bytes come in it."""

    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    idle_timeout_s: float = 75.0
    linger_s: float = 5.0
    write_timeout_s: float = 30.0
    """A window within which a reader has to take `min_read_bytes_s` of what waits for it."""
    min_read_bytes_s: int = 1024
    leaving_write_timeout_s: float = 3.0
    """The same window while the server stops."""
    max_header_bytes: int = 64 * 1024
    max_connections: int = 4096
    max_connections_per_address: int = 1024
    evict_after_s: float = 1.0
    """A connection that has waited for less keeps its place: its request may be on its way."""
    max_unsent_bytes: int = 256 * 1024 * 1024
    """Of all answers together that their readers have not taken; beyond it the slowest readers are cut off."""
    max_pipelined: int = 16
    max_discarded_bytes: int = 16 * 1024 * 1024

    def phase_s(self, phase: Phase) -> float | None:
        """How long a connection may stay in a phase; None: as long as the application needs."""
        return {
            Phase.HEAD: self.header_timeout_s,
            Phase.BODY: self.body_timeout_s,
            Phase.IDLE: self.idle_timeout_s,
            Phase.LINGER: self.linger_s,
        }.get(phase)

    @property
    def sweep_s(self) -> float:
        """How often the connections are looked at: often enough for the shortest bound, at most once a second."""
        bounds = (
            self.header_timeout_s,
            self.body_timeout_s,
            self.idle_timeout_s,
            self.linger_s,
            self.write_timeout_s,
            self.leaving_write_timeout_s,
        )
        return max(0.02, min(1.0, min(bounds) / 5))


@dataclass(frozen=True, slots=True)
class Mark:
    """How many bytes a reader had taken at a time at which more waited for it."""

    at_s: float
    sent_bytes: int


def next_mark(
    mark: Mark | None, *, unsent_bytes: int, sent_bytes: int, now_s: float, window_s: float, min_bytes_s: int
) -> tuple[Mark | None, bool]:
    """The mark to keep, and whether the reader was too slow since the old one. Nothing unsent: nothing to judge."""
    if unsent_bytes == 0:
        return None, False
    if mark is None:
        return Mark(now_s, sent_bytes), False
    if now_s - mark.at_s < window_s:
        return mark, False
    if sent_bytes - mark.sent_bytes < min_bytes_s * window_s:
        return mark, True
    return Mark(now_s, sent_bytes), False


@lru_cache(maxsize=4096)
def source(peer: str) -> str:
    """The key of a peer's connection count: its IPv4 address, or its IPv6 /64, which one host owns whole."""
    address = parse_hop(peer)
    if address is None:
        return peer
    return str(address) if address.version == 4 else str(IPv6Network((int(address), 64), strict=False))
