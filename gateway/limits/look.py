"""The state of one rule's counters for a claim, at one instant. Pure; `scripts/reserve.lua` computes the same."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.limits.claim import MICRO, BoundRule, Claim, Kind, Refusal, Tally
from gateway.limits.windows import carried_over


@dataclass(slots=True)
class Look:
    """One rule's counters at one instant, and what they say to a claim."""

    index: int
    bound: BoundRule
    now_ms: int
    tally: Tally
    previous: Tally
    flying: int

    def _carried(self, amount: int) -> int:
        return carried_over(amount, self.bound.window, self.now_ms) if amount else 0

    def _requests(self) -> int:
        return self.tally.requests + self._carried(self.previous.requests)

    def _in(self) -> int:
        return self.tally.used_in + self.tally.held_in + self._carried(self.previous.used_in + self.previous.held_in)

    def _out(self) -> int:
        return (
            self.tally.used_out + self.tally.held_out + self._carried(self.previous.used_out + self.previous.held_out)
        )

    def _previous_tokens(self) -> int:
        previous = self.previous
        return previous.used_in + previous.used_out + previous.held_in + previous.held_out

    def _tokens(self) -> int:
        tally = self.tally
        return tally.used_in + tally.used_out + tally.held_in + tally.held_out + self._carried(self._previous_tokens())

    def _cost(self) -> int:
        return (
            self.tally.used_cost
            + self.tally.held_cost
            + self._carried(self.previous.used_cost + self.previous.held_cost)
        )

    def _least(self, claim: Claim, room_of_rule: int) -> int:
        least = min(claim.output_tokens, claim.choices)
        if self.bound.rate and claim.output_tokens > 0:
            # A budget is spent to its last token; in a rate window waiting beats a stub of an answer.
            least = max(least, min(claim.output_tokens, claim.min_grant * claim.choices, room_of_rule))
        return least

    def _affordable(self, claim: Claim, limit: int) -> int:
        if claim.free:
            return claim.output_tokens
        left = (limit - self._cost()) * MICRO - claim.fixed_cost
        if left < 0:
            return -1
        return left // claim.price_out if claim.price_out > 0 else claim.output_tokens

    def rooms(self, claim: Claim) -> list[int]:
        """Output tokens that each limit of the rule leaves, in the order that clamps are blamed."""
        rule, rooms = self.bound.rule, []
        if rule.tokens is not None:
            rooms.append(rule.tokens - self._tokens() - claim.prompt_tokens)
        if rule.tokens_out is not None:
            rooms.append(rule.tokens_out - self._out())
        if rule.cost_micro is not None:
            rooms.append(self._affordable(claim, rule.cost_micro))
        return rooms

    def refusals(self, claim: Claim) -> list[Refusal]:
        rule, tally, previous, found = self.bound.rule, self.tally, self.previous, []
        now, index, prompt = self.now_ms, self.index, claim.prompt_tokens
        kind: Kind = "tokens" if self.bound.rate else "budget"
        if rule.concurrent is not None and self.flying + 1 > rule.concurrent:
            found.append(
                Refusal(now, "concurrency", index, self.flying, self.flying, rule.concurrent, 1, 0, "concurrent")
            )
        if rule.requests is not None and self._requests() + 1 > rule.requests:
            count: Kind = "requests" if self.bound.rate else "budget"
            found.append(Refusal(now, count, index, tally.requests, 0, rule.requests, 1, previous.requests, "requests"))
        if rule.tokens is not None:
            least = self._least(claim, rule.tokens - prompt)
            if rule.tokens - self._tokens() - prompt < least:
                used, held = tally.used_in + tally.used_out, tally.held_in + tally.held_out
                found.append(
                    Refusal(
                        now, kind, index, used, held, rule.tokens, prompt + least, self._previous_tokens(), "tokens"
                    )
                )
        if rule.tokens_in is not None and self._in() + prompt > rule.tokens_in:
            before = previous.used_in + previous.held_in
            found.append(
                Refusal(now, kind, index, tally.used_in, tally.held_in, rule.tokens_in, prompt, before, "tokens_in")
            )
        if rule.tokens_out is not None:
            least = self._least(claim, rule.tokens_out)
            if rule.tokens_out - self._out() < least:
                before = previous.used_out + previous.held_out
                found.append(
                    Refusal(
                        now, kind, index, tally.used_out, tally.held_out, rule.tokens_out, least, before, "tokens_out"
                    )
                )
        if rule.cost_micro is not None:
            least = min(claim.output_tokens, claim.choices)
            if self._affordable(claim, rule.cost_micro) < least:
                ask, before = claim.least_cost_micro, previous.used_cost + previous.held_cost
                found.append(
                    Refusal(
                        now, "budget", index, tally.used_cost, tally.held_cost, rule.cost_micro, ask, before, "cost"
                    )
                )
        return found

    def requests_left(self) -> list[int]:
        limit = self.bound.rule.requests
        return [] if limit is None else [limit - self._requests()]

    def tokens_left(self) -> list[int]:
        rule = self.bound.rule
        pairs = ((rule.tokens, self._tokens()), (rule.tokens_in, self._in()), (rule.tokens_out, self._out()))
        return [limit - taken for limit, taken in pairs if limit is not None]

    def permille_used(self) -> int:
        rule = self.bound.rule
        pairs = (
            (rule.requests, self._requests()),
            (rule.tokens, self._tokens()),
            (rule.tokens_in, self._in()),
            (rule.tokens_out, self._out()),
            (rule.cost_micro, self._cost()),
        )
        return max((taken * 1000 // limit if limit else 1000 for limit, taken in pairs if limit is not None), default=0)
