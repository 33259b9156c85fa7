"""The state of one rule's counters for a claim, at one instant. Pure; `scripts/reserve.lua` computes the same."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.limits.claim import MICRO, BoundRule, Claim, Refusal, Tally
from gateway.limits.dimensions import CONCURRENT, WINDOWED, Dimension
from gateway.limits.windows import carried_over


@dataclass(slots=True)
class RuleState:
    """One rule's counters at one instant, and what they say to a claim."""

    index: int
    bound: BoundRule
    now_ms: int
    tally: Tally
    previous: Tally
    in_flight: int

    def rooms(self, claim: Claim) -> list[int]:
        """Output tokens that each limit of the rule leaves, in the order that clamps are blamed."""
        return [self._room(dimension, limit, claim) for dimension, limit in self._limits() if dimension.grows]

    def refusals(self, claim: Claim) -> list[Refusal]:
        found, limit = [], self.bound.rule.concurrent
        if limit is not None and self.in_flight + 1 > limit:
            found.append(
                Refusal(
                    self.now_ms, "concurrency", self.index, self.in_flight, self.in_flight, limit, 1, 0, CONCURRENT.name
                )
            )
        for dimension, limit in self._limits():
            least = self._least(dimension, limit, claim)
            if self._room(dimension, limit, claim) < least:
                found.append(self._refusal(dimension, limit, claim, least))
        return found

    def left(self, headroom: str) -> list[int]:
        """What the limits of one kind of headroom leave."""
        return [limit - self._taken(dimension) for dimension, limit in self._limits() if dimension.headroom == headroom]

    def permille_used(self) -> int:
        return max(
            (self._taken(dimension) * 1000 // limit if limit else 1000 for dimension, limit in self._limits()),
            default=0,
        )

    def _limits(self) -> list[tuple[Dimension, int]]:
        rule = self.bound.rule
        pairs = [(dimension, getattr(rule, dimension.name)) for dimension in WINDOWED]
        return [(dimension, limit) for dimension, limit in pairs if limit is not None]

    def _taken(self, dimension: Dimension) -> int:
        before = self._before(dimension)
        carried = carried_over(before, self.bound.window, self.now_ms) if before else 0
        return self.tally.used(dimension) + self.tally.held(dimension) + carried

    def _before(self, dimension: Dimension) -> int:
        return self.previous.used(dimension) + self.previous.held(dimension)

    def _room(self, dimension: Dimension, limit: int, claim: Claim) -> int:
        """Output tokens that the limit leaves; of a dimension that no answer adds to, what is left of it."""
        if not dimension.is_money:
            return limit - self._taken(dimension) - claim.base(dimension)
        if claim.free:
            return claim.output_tokens
        left = (limit - self._taken(dimension)) * MICRO - claim.fixed_cost
        if left < 0:
            return -1
        return left // claim.price_out if claim.price_out > 0 else claim.output_tokens

    def _least(self, dimension: Dimension, limit: int, claim: Claim) -> int:
        """The least output worth starting for."""
        if not dimension.grows:
            return 0
        least = min(claim.output_tokens, claim.choices)
        if self.bound.rate and claim.output_tokens > 0 and not dimension.is_money:
            # A budget is spent to its last token; in a rate window waiting beats a stub of an answer.
            room_of_rule = limit - claim.base(dimension)
            least = max(least, min(claim.output_tokens, claim.min_grant * claim.choices, room_of_rule))
        return least

    def _refusal(self, dimension: Dimension, limit: int, claim: Claim, least: int) -> Refusal:
        return Refusal(
            now_ms=self.now_ms,
            kind=dimension.kind if self.bound.rate else "budget",
            index=self.index,
            used=self.tally.used(dimension),
            held=self.tally.held(dimension),
            limit=limit,
            ask=claim.least_cost_micro if dimension.is_money else claim.base(dimension) + least,
            previous=self._before(dimension),
            quantity=dimension.name,
        )
