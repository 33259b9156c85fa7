"""The system's clock, wrong by a fixed time: a battery that died, a time zone mistaken for UTC."""

from __future__ import annotations

from datetime import datetime, timedelta

from gateway.flow.context import SystemClock


class ShiftedClock(SystemClock):
    def __init__(self, by: timedelta) -> None:
        self._by = by

    def now(self) -> datetime:
        return super().now() + self._by
