"""Stage timer: measures the stages of a request beside the exchange and gives one `Timings` value."""

from __future__ import annotations

from gateway.flow.context import Clock
from gateway.flow.values import Timings


class StageTimer:
    """One stopwatch per request; all laps in microseconds."""

    __slots__ = (
        "_clock",
        "auth_us",
        "guard_us",
        "limits_us",
        "overhead_us",
        "policy_us",
        "route_us",
        "started_s",
    )

    def __init__(self, clock: Clock, started_s: float) -> None:
        self._clock = clock
        self.started_s = started_s
        self.auth_us: int | None = None
        self.policy_us: int | None = None
        self.guard_us: int | None = None
        self.route_us: int | None = None
        self.limits_us: int | None = None
        self.overhead_us: int | None = None

    def now(self) -> float:
        return self._clock.monotonic_s()

    def since(self, started_s: float) -> int:
        return round((self._clock.monotonic_s() - started_s) * 1e6)

    def timings(self) -> Timings:
        return Timings(
            auth_us=self.auth_us,
            policy_us=self.policy_us,
            limits_us=self.limits_us,
            guard_us=self.guard_us,
            route_us=self.route_us,
            overhead_us=self.overhead_us,
        )
