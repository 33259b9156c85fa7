"""Window bounds: pure calendar and sliding-window arithmetic.

Owns time zones and daylight saving; knows no store and no counter. Windows tile time: the end of one is the start of
the next, so counters keyed by the window's id need no reset job.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import ceil
from zoneinfo import ZoneInfo

from gateway.flow.values import LimitRule

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Window:
    """A half-open span `[start_ms, end_ms)` in milliseconds since the epoch. `id` is unique per rule and scope."""

    id: str
    start_ms: int
    end_ms: int
    previous_id: str | None = None
    """The window before, for sliding rules only."""

    def contains(self, now_ms: int) -> bool:
        return self.start_ms <= now_ms < self.end_ms

    @property
    def length_ms(self) -> int:
        return self.end_ms - self.start_ms


def is_rate(rule: LimitRule) -> bool:
    """True for windows shorter than a day: a full one means "wait a little", not "the budget is spent"."""
    if rule.window_s is not None:
        return rule.window_s * 1000 < DAY_MS
    return rule.window == "minute"


def window_at(rule: LimitRule, now_ms: int) -> Window:
    """The window of `rule` that holds `now_ms`.

    Seconds and minutes are aligned to the epoch. Days and months are calendar days and months of `rule.tz`: 23 or
    25 hours long where the clock changes. A local midnight that does not exist starts at the instant the clock jumps;
    one that happens twice starts at the first. Raises `zoneinfo.ZoneInfoNotFoundError` for an unknown zone.
    """
    if rule.window_s is not None:
        return _aligned(f"s{rule.window_s}", rule.window_s * 1000, now_ms, rule.sliding)
    if rule.window == "minute":
        return _aligned("m", 60_000, now_ms, rule.sliding)
    zone = _zone(rule.tz)
    local = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(zone)
    if rule.window == "day":
        first = datetime(local.year, local.month, local.day)  # noqa: DTZ001 - the zone is added by _epoch_ms
        following = first + timedelta(days=1)
        label = f"d{first:%Y-%m-%d}"
    else:
        first = datetime(local.year, local.month, 1)  # noqa: DTZ001
        following = datetime(local.year + local.month // 12, local.month % 12 + 1, 1)  # noqa: DTZ001
        label = f"M{first:%Y-%m}"
    return Window(id=label, start_ms=_epoch_ms(first, zone), end_ms=_epoch_ms(following, zone))


def carried_over(previous: int, window: Window, now_ms: int) -> int:
    """The previous window's part in a sliding one: its use times the share of it still in view."""
    return previous * max(0, window.end_ms - now_ms) // window.length_ms


def sliding_wait_ms(limit: int, current: int, previous: int, ask: int, window: Window, now_ms: int) -> int:
    """Milliseconds until `ask` more fits under `limit` if nobody else comes; never below 1."""
    if current + ask <= limit:
        if previous <= 0:
            return 1
        # previous * (end - t) / length <= limit - current - ask, solved for t
        room = limit - current - ask
        fits_at = window.end_ms - (room + 1) * window.length_ms // previous
        return max(1, fits_at - now_ms + 1)
    # Only once this window is the previous one does its use start to fade.
    into_next = ceil(window.length_ms * max(0, current + ask - limit) / current) if current else 0
    return max(1, window.end_ms - now_ms + min(into_next, window.length_ms))


def _aligned(label: str, length_ms: int, now_ms: int, sliding: bool) -> Window:
    index = now_ms // length_ms
    previous = f"{label}:{index - 1}" if sliding else None
    return Window(f"{label}:{index}", index * length_ms, (index + 1) * length_ms, previous)


def _epoch_ms(naive: datetime, zone: ZoneInfo) -> int:
    # fold=0 gives the offset before a jump: a missing midnight then lands exactly on the jump (PEP 495).
    return round(naive.replace(tzinfo=zone).timestamp() * 1000)


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)
