"""The limit on concurrent requests, with a lane reserved for operators. Pure counting.

Who asks is not known yet, so the lane goes by path. It is small, and one source may hold only part of it: a stranger is
told 401 quickly and cannot keep an administrator out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

Lane = Literal["ordinary", "operators"]
PROBES = frozenset({"/livez", "/readyz", "/health"})
OPERATORS = "/admin/v1/"
SHARE_OF_ONE_SOURCE = 4
"""A source holds at most this part of the lane."""


@dataclass(slots=True)
class InFlight:
    """How many requests are being served; read by metrics."""

    count: int = 0
    rejected: int = 0
    operators: int = 0
    """Of them in the lane of operators."""


class Admission:
    """`enter` before a request runs; `leave` after one that was let in, with the lane it got."""

    def __init__(self, in_flight: InFlight, most: int, operator_slots: int) -> None:
        self._in_flight, self._most, self._slots = in_flight, most, operator_slots
        self._of_one_source = max(1, operator_slots // SHARE_OF_ONE_SOURCE)
        self._sources: Counter[str | None] = Counter()

    def enter(self, path: str, source: str | None) -> Lane | None:
        """None: refused. Operators use their lane first, then the places that all others have."""
        flight = self._in_flight
        if path.startswith(OPERATORS) and self._has_slot(source):
            flight.operators += 1
            self._sources[source] += 1
            flight.count += 1
            return "operators"
        if flight.count - flight.operators >= self._most and path not in PROBES:
            flight.rejected += 1
            return None
        flight.count += 1
        return "ordinary"

    def leave(self, lane: Lane, source: str | None) -> None:
        self._in_flight.count -= 1
        if lane == "operators":
            self._in_flight.operators -= 1
            self._sources[source] -= 1
            if self._sources[source] <= 0:
                del self._sources[source]

    def _has_slot(self, source: str | None) -> bool:
        return self._in_flight.operators < self._slots and self._sources[source] < self._of_one_source
