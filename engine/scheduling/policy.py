"""The order in which waiting sequences are admitted, and the victim of a preemption. Owns no blocks or slots.

`fcfs`      arrival; the last admitted gives way.
`priority`  (priority, arrival), lower first; the highest number gives way, also to a more urgent request that finds all
            slots taken (each sequence loses its slot once at most). Who has waited longer than the bound goes first.
`fair`      virtual token counters per share key (VTC, Sheng et al., arXiv 2401.00588): the share that has been served
            least, by weight, goes next. Prefill tokens cost 1, decode tokens 2; cached and recomputed tokens cost
            nothing. A share that comes back is lifted to the least active counter, so that idling earns no credit, and
            a share with work but no admission for `starvation_bound_s` goes first. Inside a share by priority, but who
            has waited that long goes first.
"""

from __future__ import annotations

from collections import abc
from typing import Protocol

from engine.sequence import Sequence

PREFILL_COST = 1.0
DECODE_COST = 2.0
_REMEMBERED_SHARES = 1024


class Policy(Protocol):
    leaves_room: bool
    """Running prefills leave half of a step's budget to waiting requests, so that a long prompt delays nobody long."""

    def key(self, sequence: Sequence) -> tuple[int, ...]:
        """Order inside one share; smaller goes first. Fixed while the sequence waits."""
        ...

    def choose(self, heads: abc.Sequence[Sequence], now: float) -> Sequence:
        """The next to admit among the first of each share. `heads` is not empty. Pure."""
        ...

    def is_overdue(self, sequence: Sequence, now: float) -> bool:
        """Whether it goes before the more urgent of its own share. Asked of the one that has waited longest. Pure."""
        ...

    def victim(self, running: abc.Sequence[Sequence]) -> Sequence:
        """The victim of a preemption among `running`, which is not empty. Pure."""
        ...

    def displace(self, candidate: Sequence, running: abc.Sequence[Sequence]) -> Sequence | None:
        """The sequence that gives its slot to `candidate` when all slots are taken, or None. Pure."""
        ...

    def joined(self, sequence: Sequence) -> None:
        """The first living sequence of its share arrived."""
        ...

    def left(self, share_key: str) -> None:
        """The last living sequence of the share ended."""
        ...

    def admitted(self, sequence: Sequence, now: float) -> None: ...

    def charge(self, sequence: Sequence, prefill_tokens: int, decode_tokens: int) -> None: ...


class FirstComeFirstServed:
    leaves_room = False

    def key(self, sequence: Sequence) -> tuple[int, ...]:
        return (sequence.preemptions == 0, sequence.order)

    def choose(self, heads: abc.Sequence[Sequence], now: float) -> Sequence:  # noqa: ARG002
        return min(heads, key=self.key)

    def is_overdue(self, sequence: Sequence, now: float) -> bool:  # noqa: ARG002
        return False

    def victim(self, running: abc.Sequence[Sequence]) -> Sequence:
        return max(running, key=lambda s: s.order)

    def displace(self, candidate: Sequence, running: abc.Sequence[Sequence]) -> Sequence | None:  # noqa: ARG002
        return None

    def joined(self, sequence: Sequence) -> None: ...

    def left(self, share_key: str) -> None: ...

    def admitted(self, sequence: Sequence, now: float) -> None: ...

    def charge(self, sequence: Sequence, prefill_tokens: int, decode_tokens: int) -> None: ...


class ByPriority(FirstComeFirstServed):
    def __init__(self, starvation_bound_s: float) -> None:
        self._bound = starvation_bound_s

    def key(self, sequence: Sequence) -> tuple[int, ...]:
        return (sequence.priority, sequence.order)

    def choose(self, heads: abc.Sequence[Sequence], now: float) -> Sequence:
        starving = [s for s in heads if now - s.arrived_at > self._bound]
        return min(starving, key=lambda s: s.order) if starving else min(heads, key=self.key)

    def is_overdue(self, sequence: Sequence, now: float) -> bool:
        return now - sequence.arrived_at > self._bound

    def victim(self, running: abc.Sequence[Sequence]) -> Sequence:
        return max(running, key=self.key)

    def displace(self, candidate: Sequence, running: abc.Sequence[Sequence]) -> Sequence | None:
        """Only who is strictly less urgent gives its slot, and once: a stream of urgent requests stops nobody twice."""
        movable = [s for s in running if s.priority > candidate.priority and not s.displaced]
        return max(movable, key=self.key) if movable else None


class FairShare:
    leaves_room = True

    def __init__(self, starvation_bound_s: float) -> None:
        self._bound = starvation_bound_s
        self._counters: dict[str, float] = {}
        self._last_admission: dict[str, float] = {}
        self._active: dict[str, float] = {}
        """share -> weight, for shares with living sequences."""
        self._floor = 0.0

    @property
    def counters(self) -> abc.Mapping[str, float]:
        """Weighted tokens served per share."""
        return self._counters

    def key(self, sequence: Sequence) -> tuple[int, ...]:
        return (sequence.preemptions == 0, sequence.priority, sequence.order)

    def choose(self, heads: abc.Sequence[Sequence], now: float) -> Sequence:
        preempted = [s for s in heads if s.preemptions]
        if preempted:
            return min(preempted, key=lambda s: s.order)
        waited = [(self._waits_since(s), s.order, s) for s in heads]
        starving = [w for w in waited if now - w[0] > self._bound]
        if starving:
            return min(starving)[2]
        return min(heads, key=self._turn)

    def is_overdue(self, sequence: Sequence, now: float) -> bool:
        return now - sequence.arrived_at > self._bound

    def _turn(self, sequence: Sequence) -> tuple[float, float, int]:
        """Least served first; among equals (who came back was lifted to the least) the one longest unserved."""
        share = sequence.share_key
        return self._counters[share], self._last_admission.get(share, float("-inf")), sequence.order

    def victim(self, running: abc.Sequence[Sequence]) -> Sequence:
        return max(running, key=lambda s: (self._counters[s.share_key], s.order))

    def displace(self, candidate: Sequence, running: abc.Sequence[Sequence]) -> Sequence | None:
        """A share without any running sequence takes one slot from the share furthest above its part.

        Each sequence can be displaced once, so the work lost is bounded.
        """
        held: dict[str, int] = {}
        for sequence in running:
            held[sequence.share_key] = held.get(sequence.share_key, 0) + 1
        if candidate.share_key in held:
            return None
        total = sum(self._active.values())
        excess = {share: count - len(running) * self._active[share] / total for share, count in held.items()}
        share = max(excess, key=lambda key: excess[key])
        if held[share] < 2 or excess[share] <= 0:
            return None
        movable = [s for s in running if s.share_key == share and not s.displaced]
        return max(movable, key=lambda s: s.order) if movable else None

    def joined(self, sequence: Sequence) -> None:
        share = sequence.share_key
        if self._active:
            self._floor = max(self._floor, min(self._counters[s] for s in self._active))
        self._counters[share] = max(self._counters.get(share, 0.0), self._floor)
        self._active[share] = sequence.share_weight

    def left(self, share_key: str) -> None:
        self._floor = max(self._floor, min(self._counters[s] for s in self._active))
        del self._active[share_key]
        self._last_admission.pop(share_key, None)
        if len(self._counters) > _REMEMBERED_SHARES + len(self._active):
            self._counters = {
                share: value for share, value in self._counters.items() if share in self._active or value > self._floor
            }

    def admitted(self, sequence: Sequence, now: float) -> None:
        self._last_admission[sequence.share_key] = now
        self._active[sequence.share_key] = sequence.share_weight

    def charge(self, sequence: Sequence, prefill_tokens: int, decode_tokens: int) -> None:
        cost = PREFILL_COST * prefill_tokens + DECODE_COST * decode_tokens
        self._counters[sequence.share_key] += cost / sequence.share_weight

    def _waits_since(self, sequence: Sequence) -> float:
        return max(self._last_admission.get(sequence.share_key, sequence.arrived_at), sequence.arrived_at)


def make_policy(name: str, starvation_bound_s: float) -> Policy:
    policies: dict[str, Policy] = {
        "fcfs": FirstComeFirstServed(),
        "priority": ByPriority(starvation_bound_s),
        "fair": FairShare(starvation_bound_s),
    }
    return policies[name]
