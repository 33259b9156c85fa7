"""The sequences that are past their deadline. Knows no queues and ends nothing itself."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from engine.sequence import Sequence, Status

_SMALL = 64


class Deadlines:
    """A heap with lazy removal: most sequences end long before their deadline, so the dead are swept out when they
    may be half of it. Amortized O(log n) each, and memory follows the living."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []
        self._sweep_at = _SMALL

    def __len__(self) -> int:
        return len(self._heap)

    def watch(self, sequence: Sequence) -> None:
        """Nothing to do for a sequence without a deadline."""
        if sequence.deadline_s is None:
            return
        if len(self._heap) >= self._sweep_at:
            self._heap = [entry for entry in self._heap if entry[2].status is not Status.FINISHED]
            heapify(self._heap)
            self._sweep_at = max(_SMALL, 2 * len(self._heap))
        heappush(self._heap, (sequence.deadline_s, sequence.order, sequence))

    def passed(self, now: float) -> Iterator[Sequence]:
        """Each sequence whose deadline is not after `now`, once."""
        while self._heap and self._heap[0][0] <= now:
            yield heappop(self._heap)[2]
