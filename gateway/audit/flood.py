"""Refusals of callers nobody knows: so many a minute from one source are recorded one by one, the rest are counted.

Keeps a flood of bad tokens from filling the disk without dropping anything silently. Counts live in memory until they
are drained; knows no records and no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

MAX_SOURCES = 10_000
MANY = "(many)"
WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class Bulk:
    """Refusals with one code that have no record of their own. `sample` is the request id of the first."""

    code: str
    status: int
    count: int
    first: datetime
    last: datetime
    sample: UUID
    source: str | None = None
    route: str = "-"
    """One of our own paths."""

    def more(self, now: datetime) -> Bulk:
        return replace(self, count=self.count + 1, last=now)


class FloodGate:
    """`admits` each refusal of an unknown caller; what it does not admit is `fold`ed into a count."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._windows: dict[str, tuple[float, int]] = {}
        self._bulks: dict[tuple[str, str], Bulk] = {}

    def admits(self, source: str | None, now_s: float) -> bool:
        """True for the first `per_minute` refusals of a source in each minute. `now_s` is monotonic."""
        name = self._name(source, now_s)
        since, count = self._windows.get(name, (now_s, 0))
        if now_s - since >= WINDOW_S:
            since, count = now_s, 0
        self._windows[name] = (since, count + 1)
        return count < self._per_minute

    def fold(self, source: str | None, code: str, status: int, now: datetime, request_id: UUID) -> None:
        name = (source or MANY) if (source or MANY) in self._windows else MANY
        known = self._bulks.get((name, code))
        fresh = Bulk(code, status, 1, now, now, request_id, None if name == MANY else name)
        self._bulks[name, code] = fresh if known is None else known.more(now)

    def drain(self) -> tuple[Bulk, ...]:
        """The counts since the last call."""
        bulks = tuple(self._bulks.values())
        self._bulks = {}
        return bulks

    def _name(self, source: str | None, now_s: float) -> str:
        """Memory is bounded too: beyond so many sources a minute all new ones share a name."""
        if source is None or source in self._windows:
            return source or MANY
        if len(self._windows) >= MAX_SOURCES:
            self._windows = {name: seen for name, seen in self._windows.items() if now_s - seen[0] < WINDOW_S}
        return source if len(self._windows) < MAX_SOURCES else MANY
