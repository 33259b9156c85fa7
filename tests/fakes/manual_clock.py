"""A clock that moves only when a test says so; starts at the real time, so that real tokens are in their time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class ManualClock:
    def __init__(self, start: datetime | None = None) -> None:
        self._now = start if start is not None else datetime.now(UTC)
        self._monotonic_s = 1000.0

    def now(self) -> datetime:
        return self._now

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def advance(self, seconds: float) -> None:
        """Both clocks go on together."""
        self._now += timedelta(seconds=seconds)
        self._monotonic_s += seconds

    def step_wall(self, seconds: float) -> None:
        """The wall clock jumps (NTP, a wrong battery); the monotonic one does not."""
        self._now += timedelta(seconds=seconds)
