"""The waiting sequences, one heap per share key. Knows the policy's order, not its reasons.

Removal is lazy: a sequence that ended while waiting stays in its heap until it reaches the top or the heap is mostly
dead, so an abort costs O(1).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from heapq import heapify, heappop, heappush

from engine.sequence import Sequence, Status

_Entry = tuple[tuple[int, ...], int, Sequence]


class WaitingQueues:
    def __init__(self, key: Callable[[Sequence], tuple[int, ...]]) -> None:
        self._key = key
        self._heaps: dict[str, list[_Entry]] = {}
        self._arrivals: dict[str, list[tuple[int, Sequence]]] = {}
        """The same by arrival, whatever the policy's order; who has left is removed late."""
        self._live: dict[str, int] = {}
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def push(self, sequence: Sequence) -> None:
        share = sequence.share_key
        heappush(self._heaps.setdefault(share, []), (self._key(sequence), sequence.order, sequence))
        arrivals = self._arrivals.setdefault(share, [])
        heappush(arrivals, (sequence.order, sequence))
        self._live[share] = live = self._live.get(share, 0) + 1
        self._total += 1
        if len(arrivals) > 64 and len(arrivals) > 4 * live:
            arrivals[:] = [(entry[1], entry[2]) for entry in self._heaps[share] if entry[2].status is Status.WAITING]
            heapify(arrivals)

    def oldest(self, share: str) -> Sequence:
        """The sequence of a share that has waited longest. The share is not empty. May name one just popped."""
        arrivals = self._arrivals[share]
        while arrivals[0][1].status is not Status.WAITING:
            heappop(arrivals)
        return arrivals[0][1]

    def pop(self, sequence: Sequence) -> None:
        """Remove who was returned by `heads` in O(log n), or by `oldest` in O(n)."""
        heap = self._heaps[sequence.share_key]
        if heap[0][2] is sequence:
            heappop(heap)
        else:
            heap[:] = [entry for entry in heap if entry[2] is not sequence]
            heapify(heap)
        self._forget(sequence.share_key)

    def discard(self, sequence: Sequence) -> None:
        """The sequence is no longer WAITING; its entry dies later."""
        share = sequence.share_key
        self._forget(share)
        heap = self._heaps.get(share)
        if heap is not None and len(heap) > 32 and len(heap) > 2 * self._live.get(share, 0):
            heap[:] = [entry for entry in heap if entry[2].status is Status.WAITING]
            heapify(heap)

    def heads(self, skipped_shares: Collection[str] = ()) -> list[Sequence]:
        """The first of each share that is not skipped. O(shares)."""
        heads = []
        for share, heap in self._heaps.items():
            if share in skipped_shares:
                continue
            while heap[0][2].status is not Status.WAITING:
                heappop(heap)
            heads.append(heap[0][2])
        return heads

    def all(self) -> list[Sequence]:
        return [entry[2] for heap in self._heaps.values() for entry in heap if entry[2].status is Status.WAITING]

    def _forget(self, share: str) -> None:
        self._total -= 1
        self._live[share] -= 1
        if self._live[share] == 0:
            del self._live[share], self._heaps[share], self._arrivals[share]
