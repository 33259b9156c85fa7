"""Circuit breaker for a store that does not answer. A pure state machine over seconds.

Requests never probe: while it is open they use the local share at once, and the owner's background task probes.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0


@dataclass(slots=True)
class Breaker:
    """Opens after `threshold` failures in a row that span `span_s` at least, or at once by `trip`; each failed probe
    doubles the pause. Requests that wait at once all fail in one hiccup of a busy machine, which is no outage."""

    threshold: int = 3
    span_s: float = 0.3
    failures: int = 0
    first_failure_s: float = 0.0
    is_open: bool = False
    probe_at_s: float = 0.0
    pause_s: float = FIRST_PAUSE_S

    def succeeded(self) -> None:
        """A call was answered in time."""
        self.failures = 0

    def failed(self, now_s: float) -> bool:
        """A call was not answered in time. Returns True when this one opened the breaker."""
        if self.is_open:
            return False
        if self.failures == 0:
            self.first_failure_s = now_s
        self.failures += 1
        lasting = now_s - self.first_failure_s >= self.span_s
        return self.failures >= self.threshold and lasting and self.trip(now_s)

    def trip(self, now_s: float) -> bool:
        """The connection is known to be gone. Returns True when this opened the breaker."""
        if self.is_open:
            return False
        self.is_open = True
        self.pause_s = FIRST_PAUSE_S
        self.probe_at_s = now_s + self.pause_s
        return True

    def probe_failed(self, now_s: float) -> None:
        self.pause_s = min(self.pause_s * 2, LONGEST_PAUSE_S)
        self.probe_at_s = now_s + self.pause_s

    def close(self) -> None:
        """A probe was answered in time."""
        self.is_open = False
        self.failures = 0
        self.pause_s = FIRST_PAUSE_S

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next probe is due."""
        return max(0.0, self.probe_at_s - now_s)
