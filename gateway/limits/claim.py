"""The limiter's own values: what is asked of the counters, what they answer, and which counters a rule owns.

Pure. Knows the names of counters but not the store that keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.flow.values import Estimate, LimitRule, ModelCard, Usage
from gateway.limits.dimensions import COST, HELD, METERS, OUTPUT, PROMPT, REQUESTS, Dimension, Kind, Quantity
from gateway.limits.windows import Window, is_rate, window_at

MICRO = 1_000_000
MAX_BOUND = 50_000


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim of one request on all its windows. Money is exact: `ceil((fixed_cost + out * price_out) / 10**6)`."""

    id: str
    prompt_tokens: int
    output_tokens: int
    """All choices together."""
    choices: int
    fixed_cost: int
    """Price of the prompt and surcharges, in millionths of a micro-unit."""
    price_out: int
    """Micro-units per million output tokens."""
    min_grant: int
    lease_ms: int

    @property
    def known(self) -> dict[str, int]:
        """What it takes of each meter that no answer adds to."""
        return {REQUESTS.name: 1, PROMPT.name: self.prompt_tokens}

    def base(self, dimension: Dimension) -> int:
        """What it takes of a dimension before the answer begins."""
        known = self.known
        return sum(known[meter.name] for meter in dimension.known)

    def amounts(self, output_tokens: int) -> dict[str, int]:
        """What it holds of each meter once so many output tokens are granted."""
        return self.known | {OUTPUT.name: output_tokens, COST.name: self.cost_micro(output_tokens)}

    @property
    def free(self) -> bool:
        """Costs nothing, however long it gets: no budget of money concerns it."""
        return self.fixed_cost == 0 and self.price_out == 0

    @property
    def least_cost_micro(self) -> int:
        """The cost of the shortest answer worth starting for."""
        return self.cost_micro(min(self.output_tokens, self.choices))

    def cost_micro(self, output_tokens: int) -> int:
        return -(-(self.fixed_cost + output_tokens * self.price_out) // MICRO)


def claim_for(claim_id: str, estimate: Estimate, card: ModelCard, *, min_grant: int, lease_ms: int) -> Claim:
    """Turn an estimate into a claim. An estimated cost above the card's price is kept as a surcharge."""
    choices = max(1, estimate.choices)
    output = max(0, estimate.max_output_tokens) * choices
    prompt = max(0, estimate.prompt_tokens)
    priced = prompt * card.price_in_micro
    surcharge = max(0, estimate.cost_micro * MICRO - priced - output * card.price_out_micro)
    # A surcharge below one micro-unit is only the rounding of the estimate.
    fixed = priced + (surcharge if surcharge >= MICRO else 0)
    return Claim(claim_id, prompt, output, choices, fixed, card.price_out_micro, min_grant, lease_ms)


@dataclass(frozen=True, slots=True)
class BoundRule:
    """A rule with its current window and the names of its counters."""

    rule: LimitRule
    window: Window
    key: str
    previous_key: str | None
    concurrency_key: str | None
    rate: bool


class RuleBinder:
    """Gives rules their current counters, remembering the answer until the window ends."""

    def __init__(self, prefix: str) -> None:
        # One hash tag for everything: an atomic script may then touch all counters of a request in a cluster too.
        self.prefix = "{" + prefix + "}"
        self._bound: dict[tuple[str, str], BoundRule] = {}

    def bind(self, rule: LimitRule, now_ms: int) -> BoundRule:
        known = self._bound.get((rule.id, rule.scope_key))
        if (
            known is not None
            and (known.rule is rule or known.rule == rule)
            and known.window.start_ms <= now_ms < known.window.end_ms
        ):
            return known
        if len(self._bound) >= MAX_BOUND:
            self._bound.clear()
        window = window_at(rule, now_ms)
        base = f"{self.prefix}:w:{rule.id}:{rule.scope_key}"
        bound = BoundRule(
            rule=rule,
            window=window,
            key=f"{base}:{window.id}",
            previous_key=f"{base}:{window.previous_id}" if window.previous_id is not None else None,
            concurrency_key=f"{self.prefix}:n:{rule.id}:{rule.scope_key}" if rule.concurrent is not None else None,
            rate=is_rate(rule),
        )
        self._bound[rule.id, rule.scope_key] = bound
        return bound

    def bind_all(self, rules: Sequence[LimitRule], now_ms: int) -> tuple[BoundRule, ...]:
        bind = self.bind
        return tuple([bind(rule, now_ms) for rule in rules])


@dataclass(frozen=True, slots=True)
class Tightest:
    """The rule that leaves the least, and how much; `index` points into the rules of the claim."""

    index: int
    remaining: int


@dataclass(frozen=True, slots=True)
class Grant:
    """The claim holds in every window."""

    now_ms: int
    output_tokens: int
    clamped_by: int | None
    requests: Tightest | None
    tokens: Tightest | None
    filled: tuple[tuple[int, float], ...] = ()
    """`(rule index, share used)` of rules at or past their lowest warning."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The claim holds in no window; `index` is the rule that refused."""

    now_ms: int
    kind: Kind
    index: int
    used: int
    held: int
    limit: int
    ask: int
    previous: int = 0
    quantity: Quantity = "requests"


@dataclass(frozen=True, slots=True)
class Settlement:
    """The actual use of a request. `bound` lets the store charge it even when it never saw the claim."""

    id: str
    prompt_tokens: int
    completion_tokens: int
    cost_micro: int
    bound: tuple[BoundRule, ...]
    unseen: bool = False
    """True when the claim was granted locally: the store charges it once, keyed by the id."""
    void: bool = False
    """True when nobody was told of the claim, which the store may have granted: its request does not count."""

    @property
    def amounts(self) -> dict[str, int]:
        """What was used of each meter that requests hold."""
        return {PROMPT.name: self.prompt_tokens, OUTPUT.name: self.completion_tokens, COST.name: self.cost_micro}


def settlement_for(
    claim_id: str, usage: Usage, cost_micro: int, bound: tuple[BoundRule, ...], *, unseen: bool
) -> Settlement:
    return Settlement(claim_id, usage.prompt_tokens, usage.completion_tokens, cost_micro, bound, unseen)


@dataclass(frozen=True, slots=True)
class Tally:
    """The state of one rule's counters: `used_*` is settled, `held_*` is claimed by requests in flight. Fields as in
    `dimensions.METERS`."""

    requests: int = 0
    used_in: int = 0
    used_out: int = 0
    used_cost: int = 0
    held_in: int = 0
    held_out: int = 0
    held_cost: int = 0
    in_flight: int = 0

    def used(self, dimension: Dimension) -> int:
        return sum([getattr(self, meter.used) for meter in dimension.meters])

    def held(self, dimension: Dimension) -> int:
        """Of a gauge, what is in flight."""
        if not dimension.meters:
            return self.in_flight
        return sum([getattr(self, meter.held) for meter in dimension.meters if meter.held is not None])

    def claimed(self, amounts: Mapping[str, int], rule: LimitRule) -> Tally:
        """With a granted claim: held, or counted at once where the rule limits what is never given back."""
        fields = {
            (meter.held or meter.used): getattr(self, meter.held or meter.used) + amounts[meter.name]
            for meter in METERS
            if meter.held is not None or getattr(rule, meter.name) is not None
        }
        return replace(self, **fields)

    def settled(self, held: Mapping[str, int], used: Mapping[str, int]) -> Tally:
        """Without what a claim held and with what was used. Amounts by meter; what is left out is 0."""
        fields = {}
        for meter in HELD:
            assert meter.held is not None
            fields[meter.held] = getattr(self, meter.held) - held.get(meter.name, 0)
            fields[meter.used] = getattr(self, meter.used) + used.get(meter.name, 0)
        return replace(self, **fields)

    def forgotten(self) -> Tally:
        """With nothing used; what is held stays."""
        return replace(self, **{meter.used: 0 for meter in METERS})
