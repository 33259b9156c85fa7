"""The public sentences of a refusal or a warning: used, limit, when it resets. Pure; never names keys or rules."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from gateway.flow.values import LimitRule
from gateway.limits.claim import MICRO, Refusal
from gateway.limits.dimensions import BY_NAME
from gateway.limits.windows import Window


def refusal_text(rule: LimitRule, window: Window, refusal: Refusal, *, measured: bool = True) -> str:
    """`measured` False: the refusal was of an earlier request, and what this one needs is not known yet."""
    scope = f"The {span_text(rule)} limit of your {scope_text(rule)}"
    if refusal.kind == "concurrency":
        return f"Your {scope_text(rule)} already has {refusal.used} of {refusal.limit} requests running."
    used, limit, ask = (amount_text(rule, refusal, value) for value in (refusal.used, refusal.limit, refusal.ask))
    held = f", {amount_text(rule, refusal, refusal.held)} held by requests in flight" if refusal.held else ""
    needs = "" if refusal.quantity == "requests" or not measured else f"; this request needs at least {ask}"
    unit = BY_NAME[refusal.quantity].unit or rule.currency
    return f"{scope} is reached: {used} of {limit} {unit} used{held}{needs}. It resets at {reset_text(rule, window)}."


def amount_text(rule: LimitRule, refusal: Refusal, value: int) -> str:
    if not BY_NAME[refusal.quantity].is_money:
        return f"{value:,}"
    return money_text(value, rule.currency).removesuffix(f" {rule.currency}")


def money_text(micro: int, currency: str) -> str:
    """Micro-units as money; at least two decimals, up to six where cents would hide the amount."""
    whole = f"{micro / MICRO:,.6f}".rstrip("0")
    decimals = len(whole.partition(".")[2])
    return f"{whole}{'0' * max(0, 2 - decimals)} {currency}"


def scope_text(rule: LimitRule) -> str:
    return rule.scope.replace("_", " ") or "account"


def span_text(rule: LimitRule) -> str:
    if rule.window_s is not None:
        return f"{rule.window_s}-second"
    return {"minute": "one-minute", "day": "daily", "month": "monthly"}[rule.window]


def reset_text(rule: LimitRule, window: Window) -> str:
    local = datetime.fromtimestamp(window.end_ms / 1000, UTC).astimezone(ZoneInfo(rule.tz))
    return local.isoformat(timespec="seconds")
