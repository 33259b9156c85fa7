"""Settlements that the store has not confirmed yet, in order; bounded, and never silently lost."""

from __future__ import annotations

from collections import OrderedDict

from gateway.limits.claim import Settlement

MOST = 200_000


class PendingSettlements:
    """A queue keyed by claim id: settling twice is kept once. `dropped` counts what did not fit."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._pending: OrderedDict[str, Settlement] = OrderedDict()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, settlement: Settlement) -> None:
        self._pending[settlement.id] = settlement
        if len(self._pending) > self._most:
            self._pending.popitem(last=False)
            self.dropped += 1

    def batch(self, most: int) -> list[Settlement]:
        """The oldest ones; they stay until `confirm`."""
        return [settlement for settlement, _ in zip(self._pending.values(), range(most), strict=False)]

    def confirm(self, settlement: Settlement) -> None:
        if self._pending.get(settlement.id) is settlement:
            del self._pending[settlement.id]
