"""Requests that are not run again because they made the engine fail: faults by fingerprint, with evidence. No threads.

A strike needs proof that the engine itself was well: somebody else's work succeeded in the same step, or in a later
one. Until then a failure is only pending, and where another request fails alone as well the fault is the engine's and
nobody's strike. Strikes expire. The fingerprint holds the cache salt, so that no tenant's failure refuses another's
request.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

STRIKES = 2
EXPIRES_S = 600.0
EXPIRES_STEPS = 20_000
"""Steps after which a strike is forgotten, where they come sooner than the seconds."""
_REMEMBERED = 1024


@dataclass(slots=True)
class _Record:
    strikes: int
    at_s: float
    at_step: int


class PoisonGuard:
    """Owned by the engine thread. Times are those of the engine's clock."""

    def __init__(self) -> None:
        self._records: OrderedDict[bytes, _Record] = OrderedDict()
        self._pending: set[bytes] = set()
        self._steps = 0

    @property
    def is_idle(self) -> bool:
        """Nothing is remembered, so that `ran_well` would change nothing."""
        return not self._records

    @property
    def wants_evidence(self) -> bool:
        """Whether it matters to `ran_well` whose steps succeeded."""
        return bool(self._pending)

    @property
    def refused(self) -> int:
        """Fingerprints that are refused now."""
        return sum(1 for record in self._records.values() if record.strikes >= STRIKES)

    def refuses(self, fingerprint: bytes, now: float) -> bool:
        record = self._known(fingerprint, now)
        return record is not None and record.strikes >= STRIKES

    def is_suspect(self, fingerprint: bytes, now: float) -> bool:
        """Whether it must share no step with others until it has ended well."""
        return self._known(fingerprint, now) is not None

    def blame(self, fingerprint: bytes, now: float, *, proven: bool) -> None:
        """A step raised with this request alone in it. `proven`: others of the same step ran well without it."""
        self.suspect(fingerprint, now)
        if proven:
            self._strike(fingerprint, now)
        elif self._pending - {fingerprint}:
            self._pending.clear()  # several fail alone: the engine is ill, not its requests
        else:
            self._pending.add(fingerprint)

    def suspect(self, fingerprint: bytes, now: float) -> None:
        """It was in a step that killed the loop, among others: it runs alone next time."""
        if self._known(fingerprint, now) is None:
            self._records[fingerprint] = _Record(0, now, self._steps)
            if len(self._records) > _REMEMBERED:
                forgotten, _ = self._records.popitem(last=False)
                self._pending.discard(forgotten)

    def ran_well(self, fingerprints: Collection[bytes], now: float) -> None:
        """A step of these requests succeeded: the engine works, so who failed alone before is to blame."""
        self._steps += 1
        for fingerprint in [p for p in self._pending if any(other != p for other in fingerprints)]:
            self._pending.discard(fingerprint)
            self._strike(fingerprint, now)

    def ended_well(self, fingerprint: bytes) -> None:
        self._records.pop(fingerprint, None)
        self._pending.discard(fingerprint)

    def clear(self) -> None:
        """An operator knows better."""
        self._records.clear()
        self._pending.clear()

    def _strike(self, fingerprint: bytes, now: float) -> None:
        record = self._records.setdefault(fingerprint, _Record(0, now, self._steps))
        record.strikes += 1
        record.at_s, record.at_step = now, self._steps
        self._records.move_to_end(fingerprint)

    def _known(self, fingerprint: bytes, now: float) -> _Record | None:
        record = self._records.get(fingerprint)
        if record is not None and (now - record.at_s > EXPIRES_S or self._steps - record.at_step > EXPIRES_STEPS):
            self.ended_well(fingerprint)
            return None
        return record
