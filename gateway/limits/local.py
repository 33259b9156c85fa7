"""The same counters in this process's memory: what holds while the store is away.

Used with a share of each limit (limit / replicas), so that a degraded fleet together stays near the limit and is never
unlimited. Same arithmetic as `scripts/*.lua`; the property tests hold the two against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from gateway.flow.context import Clock
from gateway.flow.values import LimitRule
from gateway.limits.claim import BoundRule, Claim, Grant, Refusal, RuleBinder, Settlement, Tally, Tightest
from gateway.limits.dimensions import DIMENSIONS
from gateway.limits.rule_state import RuleState
from gateway.limits.windows import DAY_MS

NOTHING: Mapping[str, int] = {}


@dataclass(slots=True)
class _Counter:
    tally: Tally
    ends_ms: int


@dataclass(frozen=True, slots=True)
class _Lease:
    expires_ms: int
    held: Mapping[str, int]
    """By meter."""
    keys: tuple[str, ...]
    concurrency_keys: tuple[str, ...]


def share_of(rule: LimitRule, replicas: int) -> LimitRule:
    """The part of a rule that one of `replicas` may hand out alone; at least one request and one slot."""
    if replicas <= 1:
        return rule
    shares = {
        dimension.name: limit // replicas or min(limit, 1)
        for dimension in DIMENSIONS
        if (limit := getattr(rule, dimension.name)) is not None
    }
    return replace(rule, **shares)


class LocalStore:
    """`LimitStore` in memory. One process, one event loop: nothing here awaits, so every call is atomic."""

    def __init__(self, *, clock: Clock, prefix: str, replicas: int = 1) -> None:
        self.binder = RuleBinder(prefix)
        self.on_lost: Callable[[], None] | None = None
        self._clock = clock
        self._replicas = replicas
        self._counters: dict[str, _Counter] = {}
        self._flying: dict[str, int] = {}
        self._leases: dict[str, _Lease] = {}
        self._expiries: list[tuple[int, str]] = []
        self._late: dict[str, _Lease] = {}
        self._shares: dict[tuple[str, str], tuple[LimitRule, LimitRule]] = {}
        self._prune_at_ms = 0

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def reserve(self, claim: Claim, rules: Sequence[LimitRule]) -> tuple[Grant | Refusal, tuple[BoundRule, ...]]:
        return self.reserve_now(claim, rules)

    async def settle(self, settlement: Settlement, *, timeout_s: float | None = None) -> bool:  # noqa: ARG002
        return self.settle_now(settlement)

    async def renew(self, ids: Sequence[str], lease_ms: int) -> int:
        now = self._now_ms()
        known = [name for name in ids if name in self._leases]
        for name in known:
            self._leases[name] = replace(self._leases[name], expires_ms=now + lease_ms)
            heappush(self._expiries, (now + lease_ms, name))
        return len(known)

    async def sweep(self, most: int) -> int:
        return self._free_expired(self._now_ms(), most)

    async def release(self, holder: str) -> int:
        """Those of another process died with it: here are only the caller's own."""
        held = [name for name in self._leases if name.startswith(f"{holder}.")]
        return sum(self.settle_now(Settlement(name, 0, 0, 0, ())) for name in held)

    async def read(self, rules: Sequence[LimitRule]) -> tuple[tuple[BoundRule, Tally], ...]:
        bounds = self.binder.bind_all(rules, self._now_ms())
        return tuple(
            (bound, replace(self._tally(bound.key), in_flight=self._flying.get(bound.concurrency_key or "", 0)))
            for bound in bounds
        )

    async def reset(self, rules: Sequence[LimitRule]) -> None:
        for bound in self.binder.bind_all(rules, self._now_ms()):
            for key in filter(None, (bound.key, bound.previous_key)):
                if (counter := self._counters.get(key)) is not None:
                    counter.tally = counter.tally.forgotten()

    # ------------------------------------------------------------------------------------------------

    def reserve_now(self, claim: Claim, rules: Sequence[LimitRule]) -> tuple[Grant | Refusal, tuple[BoundRule, ...]]:
        now = self._now_ms()
        self._free_expired(now, 32)
        bounds = self.binder.bind_all([self._share(rule) for rule in rules], now)
        looks = [self._look(index, bound, now) for index, bound in enumerate(bounds)]
        refusals = [refusal for look in looks for refusal in look.refusals(claim)]
        if refusals:
            # The refusal that lasts longest is the one worth telling: a budget before a rate, a later end first.
            ranks = [(refusal.kind == "budget", bounds[refusal.index].window.end_ms) for refusal in refusals]
            return refusals[ranks.index(max(ranks))], bounds
        cap, clamp = claim.output_tokens, None
        for look in looks:
            for room in look.rooms(claim):
                if room < cap:
                    cap, clamp = room, look.index
        granted = cap - cap % claim.choices
        if granted >= claim.output_tokens:
            clamp = None
        amounts = claim.amounts(granted)
        for look in looks:
            look.tally = look.tally.claimed(amounts, look.bound.rule)
            self._counters[look.bound.key] = _Counter(
                look.tally, look.bound.window.end_ms + look.bound.window.length_ms
            )
            if look.bound.concurrency_key is not None:
                self._flying[look.bound.concurrency_key] = look.in_flight + 1
        self._leases[claim.id] = _Lease(
            now + claim.lease_ms,
            amounts,
            tuple(bound.key for bound in bounds),
            tuple(bound.concurrency_key for bound in bounds if bound.concurrency_key is not None),
        )
        heappush(self._expiries, (now + claim.lease_ms, claim.id))
        after = [self._look(index, bound, now) for index, bound in enumerate(bounds)]
        grant = Grant(
            now_ms=now,
            output_tokens=granted,
            clamped_by=clamp,
            requests=_tightest([(look.index, left) for look in after for left in look.left("requests")]),
            tokens=_tightest([(look.index, left) for look in after for left in look.left("tokens")]),
            filled=tuple(
                (look.index, permille / 1000)
                for look in after
                if (permille := look.permille_used()) >= round(min(look.bound.rule.warn_at, default=2.0) * 1000)
            ),
        )
        return grant, bounds

    def settle_now(self, settlement: Settlement) -> bool:
        used = settlement.amounts
        if (lease := self._leases.pop(settlement.id, None)) is not None:
            self._finish(lease, used)
            return True
        if (late := self._late.pop(settlement.id, None)) is not None:
            self._book(late.keys, NOTHING, used)
            return True
        return False

    def _share(self, rule: LimitRule) -> LimitRule:
        known = self._shares.get((rule.id, rule.scope_key))
        if known is None or known[0] != rule:
            if len(self._shares) >= 50_000:
                self._shares.clear()
            known = self._shares[rule.id, rule.scope_key] = (rule, share_of(rule, self._replicas))
        return known[1]

    def _finish(self, lease: _Lease, used: Mapping[str, int]) -> None:
        self._book(lease.keys, lease.held, used)
        for key in lease.concurrency_keys:
            left = self._flying.get(key, 0) - 1
            if left > 0:
                self._flying[key] = left
            else:
                self._flying.pop(key, None)

    def _book(self, keys: Sequence[str], held: Mapping[str, int], used: Mapping[str, int]) -> None:
        for key in keys:
            if (counter := self._counters.get(key)) is not None:
                counter.tally = counter.tally.settled(held, used)

    def _free_expired(self, now_ms: int, most: int) -> int:
        freed = 0
        while freed < most and self._expiries and self._expiries[0][0] <= now_ms:
            expires_ms, name = heappop(self._expiries)
            lease = self._leases.get(name)
            if lease is None or lease.expires_ms != expires_ms:
                continue  # settled or renewed since
            del self._leases[name]
            self._finish(lease, NOTHING)
            self._late[name] = lease
            freed += 1
        if now_ms >= self._prune_at_ms:
            self._prune(now_ms)
        return freed

    def _prune(self, now_ms: int) -> None:
        self._prune_at_ms = now_ms + 60_000
        held = {key for lease in self._leases.values() for key in lease.keys}
        for key in [k for k, c in self._counters.items() if c.ends_ms <= now_ms and k not in held]:
            del self._counters[key]
        for name in [name for name, lease in self._late.items() if lease.expires_ms + DAY_MS <= now_ms]:
            del self._late[name]

    def _tally(self, key: str | None) -> Tally:
        counter = self._counters.get(key) if key is not None else None
        return counter.tally if counter is not None else Tally()

    def _look(self, index: int, bound: BoundRule, now_ms: int) -> RuleState:
        in_flight = self._flying.get(bound.concurrency_key, 0) if bound.concurrency_key is not None else 0
        return RuleState(index, bound, now_ms, self._tally(bound.key), self._tally(bound.previous_key), in_flight)

    def _now_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1000)


def _tightest(candidates: Sequence[tuple[int, int]]) -> Tightest | None:
    if not candidates:
        return None
    index, remaining = min(candidates, key=lambda candidate: candidate[1])
    return Tightest(index, remaining)
