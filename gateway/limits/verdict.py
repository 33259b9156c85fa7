"""Limit verdicts built from the counters' answers. Pure; numbers in, frozen verdicts out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from gateway.flow.values import Headroom, LimitRule, LimitVerdict, ModelCard, Reservation
from gateway.limits.claim import BoundRule, Claim, Grant, Refusal
from gateway.limits.dimensions import BY_NAME, WINDOWED
from gateway.limits.messages import refusal_text, scope_text, span_text
from gateway.limits.windows import carried_over, sliding_wait_ms

BUSY_S = 1.0
"""How soon to try again for a slot or for tokens that requests in flight may give back."""
SHOWN_TOKENS = tuple(one.name for one in sorted(WINDOWED, key=lambda one: not one.grows) if one.headroom == "tokens")
"""Of a rule with several limits of tokens, the one to show: what the answer counts in before what it does not."""


def granted(
    claim: Claim, grant: Grant, bound: Sequence[BoundRule], limits: Sequence[LimitRule], now: datetime, *, local: bool
) -> LimitVerdict:
    headroom = headroom_of(grant, bound)
    cost = claim.cost_micro(grant.output_tokens)
    reservation = Reservation(
        id=claim.id,
        tokens=claim.prompt_tokens + grant.output_tokens,
        cost_micro=cost,
        granted_output_tokens=grant.output_tokens // claim.choices,
        expires_at=now + timedelta(milliseconds=claim.lease_ms),
        limits=tuple(limits),
        headroom=headroom,
        warnings=tuple([warning_text(bound[index].rule, share) for index, share in grant.filled]),
        clamped_by=bound[grant.clamped_by].rule.id if grant.clamped_by is not None else None,
        degraded=local,
        store="local" if local else "valkey",
    )
    return LimitVerdict(allowed=True, reservation=reservation, headroom=headroom, degraded=local)


def refused(refusal: Refusal, bound: Sequence[BoundRule], *, local: bool) -> LimitVerdict:
    rule, window = bound[refusal.index].rule, bound[refusal.index].window
    retry_s = retry_after_s(refusal, bound[refusal.index])
    left = max(0, refusal.limit - refusal.used - refusal.held)
    reset_s = (window.end_ms - refusal.now_ms) / 1000
    shown = BY_NAME[refusal.quantity].headroom
    if shown == "requests":
        headroom = Headroom(limit_requests=refusal.limit, remaining_requests=left, reset_requests_s=reset_s)
    elif shown == "tokens":
        headroom = Headroom(limit_tokens=refusal.limit, remaining_tokens=left, reset_tokens_s=reset_s)
    else:
        headroom = Headroom()
    return LimitVerdict(
        allowed=False,
        kind=refusal.kind,
        rule_id=rule.id,
        reason=refusal_text(rule, window, refusal),
        retry_after_s=retry_s,
        headroom=headroom,
        degraded=local,
    )


def store_down(rule: LimitRule) -> LimitVerdict:
    """For a rule whose policy is to refuse while its counters cannot be reached."""
    return LimitVerdict(
        allowed=False,
        kind="store",
        rule_id=rule.id,
        reason=f"The limits of your {scope_text(rule)} cannot be checked right now.",
        retry_after_s=5.0,
        degraded=True,
    )


def other_currency(limits: Sequence[LimitRule], card: ModelCard) -> LimitVerdict | None:
    """A budget cannot count a price in another currency, and what cannot be counted is not let through."""
    if not (card.price_in_micro or card.price_out_micro):
        return None
    for rule in limits:
        if rule.cost_micro is not None and rule.currency != card.currency:
            return LimitVerdict(
                allowed=False,
                kind="budget",
                rule_id=rule.id,
                reason=f"The budget of your {scope_text(rule)} counts {rule.currency}, and this model is priced in "
                f"{card.currency}: what it costs cannot be held against the budget.",
                retry_after_s=86_400.0,
            )
    return None


def retry_after_s(refusal: Refusal, bound: BoundRule) -> float | None:
    """Seconds until another try makes sense; None when this very request can never fit."""
    window, now_ms = bound.window, refusal.now_ms
    until_end = max(0.001, (window.end_ms - now_ms) / 1000)
    if refusal.kind == "concurrency":
        return BUSY_S
    if refusal.ask > refusal.limit:
        return None
    sliding = bound.previous_key is not None
    taken = refusal.used + (carried_over(refusal.previous, window, now_ms) if sliding else 0)
    if refusal.held and taken + refusal.ask <= refusal.limit:
        return min(BUSY_S, until_end)
    if sliding:
        current = refusal.used + refusal.held
        return sliding_wait_ms(refusal.limit, current, refusal.previous, refusal.ask, window, now_ms) / 1000
    return until_end


def headroom_of(grant: Grant, bound: Sequence[BoundRule]) -> Headroom:
    requests, tokens = grant.requests, grant.tokens
    limit_requests = remaining_requests = limit_tokens = remaining_tokens = None
    reset_requests = reset_tokens = None
    if requests is not None:
        limit_requests, remaining_requests = bound[requests.index].rule.requests, max(0, requests.remaining)
        reset_requests = (bound[requests.index].window.end_ms - grant.now_ms) / 1000
    if tokens is not None:
        rule = bound[tokens.index].rule
        limit_tokens = next((limit for name in SHOWN_TOKENS if (limit := getattr(rule, name)) is not None), None)
        remaining_tokens = max(0, tokens.remaining)
        reset_tokens = (bound[tokens.index].window.end_ms - grant.now_ms) / 1000
    return Headroom(limit_requests, remaining_requests, reset_requests, limit_tokens, remaining_tokens, reset_tokens)


def passed_threshold(rule: LimitRule, share: float) -> float | None:
    """The highest warning of the rule that `share` has reached."""
    return max((mark for mark in rule.warn_at if mark <= share), default=None)


def warning_text(rule: LimitRule, share: float) -> str:
    return f"{span_text(rule)} limit of your {scope_text(rule)} is at {int(share * 100)} %"
