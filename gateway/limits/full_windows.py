"""Windows that were seen full, so that the next request is refused without a question to the store.

Believed for a moment while the store can be asked, and until their end while it cannot: what was spent stays spent. A
budget of money is remembered for the second case alone, because what a request costs is known only with its model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gateway.flow.values import LimitRule, LimitVerdict
from gateway.limits.claim import BoundRule, Claim, Refusal
from gateway.limits.dimensions import BY_NAME
from gateway.limits.messages import refusal_text
from gateway.limits.verdict import refused
from gateway.limits.windows import carried_over, sliding_wait_ms

REMEMBER_S = 2.0
"""How long a full window is believed without asking; a reset or a raised limit is seen after that."""
MAX_WINDOWS = 10_000
_WINDOW = ("scope", "window", "window_s", "sliding", "tz", "currency", "on_store_error")


@dataclass(frozen=True, slots=True)
class _ExhaustedWindow:
    refusal: Refusal
    bound: BoundRule
    verdict: LimitVerdict
    """Without what the refused request needed: the next one may need less, and is not told another's figure."""
    until_s: float
    ends_s: float
    """When the window has room again if nobody else comes: a fixed one at its end, a sliding one sooner or later."""


class FullWindows:
    """Times are monotonic seconds."""

    def __init__(self) -> None:
        self._full: dict[tuple[str, str], _ExhaustedWindow] = {}

    def remember(self, refusal: Refusal, bound: BoundRule, verdict: LimitVerdict, now_s: float) -> None:
        """Keeps it only where the window itself is used up, whatever a request asks for."""
        if refusal.kind == "concurrency" or _used(refusal, bound) < refusal.limit:
            return
        if len(self._full) >= MAX_WINDOWS:
            self._full.clear()
        rule = bound.rule
        ends_s = now_s + _full_for_ms(refusal, bound) / 1000
        remembered = replace(verdict, reason=refusal_text(rule, bound.window, refusal, measured=False))
        self._full[rule.id, rule.scope_key] = _ExhaustedWindow(refusal, bound, remembered, now_s + REMEMBER_S, ends_s)

    def forget(self, rules: Sequence[LimitRule]) -> None:
        for rule in rules:
            self._full.pop((rule.id, rule.scope_key), None)

    def precheck(self, limits: Iterable[LimitRule], now_s: float, *, store_away: bool) -> LimitVerdict | None:
        """A refusal that holds whatever model is asked and however short the request is, or None."""
        if not self._full:
            return None
        for rule in limits:
            full = self._known(rule, now_s)
            if full is None or _is_money(full.refusal):
                continue
            if now_s < full.until_s or store_away:
                return replace(full.verdict, retry_after_s=full.ends_s - now_s, degraded=store_away)
        return None

    def spent(self, claim: Claim, limits: Sequence[LimitRule], now_s: float) -> LimitVerdict | None:
        """While the store is away: a budget of money that was seen spent, for whatever costs anything."""
        for rule in () if claim.free else limits:
            full = self._known(rule, now_s)
            if full is not None and _is_money(full.refusal):
                refusal = replace(full.refusal, ask=claim.least_cost_micro, index=0)
                return replace(refused(refusal, [full.bound], local=True), retry_after_s=full.ends_s - now_s)
        return None

    def _known(self, rule: LimitRule, now_s: float) -> _ExhaustedWindow | None:
        full = self._full.get((rule.id, rule.scope_key))
        if full is not None and (now_s >= full.ends_s or not _same_window(full, rule)):
            del self._full[rule.id, rule.scope_key]
            return None
        return full


def _used(refusal: Refusal, bound: BoundRule) -> int:
    """The use that the window counts, without what requests in flight may give back."""
    if bound.previous_key is None:
        return refusal.used
    return refusal.used + carried_over(refusal.previous, bound.window, refusal.now_ms)


def _full_for_ms(refusal: Refusal, bound: BoundRule) -> int:
    window, now_ms = bound.window, refusal.now_ms
    if bound.previous_key is None:
        return max(0, window.end_ms - now_ms)
    return sliding_wait_ms(refusal.limit, refusal.used, refusal.previous, 1, window, now_ms)


def _same_window(full: _ExhaustedWindow, rule: LimitRule) -> bool:
    """Whether `rule` still sets the limit that was seen used up. What else it limits is another matter: the claim of a
    refused request asks for the number of requests alone."""
    seen = full.bound.rule
    if seen == rule:
        return True
    return all(getattr(seen, name) == getattr(rule, name) for name in (full.refusal.quantity, *_WINDOW))


def _is_money(refusal: Refusal) -> bool:
    return BY_NAME[refusal.quantity].is_money
