"""Response headers that explain an answer: the model, the route and its reason, the policy, limits, cost. Pure."""

from __future__ import annotations

from functools import lru_cache

from gateway.flow.values import Exchange
from gateway.limits.headers import ratelimit_headers

Headers = list[tuple[bytes, bytes]]


def answer_headers(exchange: Exchange, *, final: bool) -> Headers:
    """`final` once the cost is known; a stream sends its headers before that."""
    found: Headers = [(b"x-esclusa-audit-id", str(exchange.request_id).encode())]
    served, plan, timings = exchange.served, exchange.plan, exchange.timings
    if served is not None:
        found.append((b"x-esclusa-model", header_value(served.id)))
    if plan is not None:
        found.append((b"x-esclusa-route", plan.route.encode()))
        found.append((b"x-esclusa-route-reason", header_value(plan.reason)))
    if exchange.decision is not None:
        found.append((b"x-esclusa-policy-version", b"%d" % exchange.decision.policy_version))
    if timings.overhead_us is not None:
        found.append((b"x-esclusa-overhead-ms", b"%.2f" % (timings.overhead_us / 1e3)))
    if final and served is not None:
        found.append((b"x-esclusa-cost", f"{exchange.cost_micro / 1e6:.6f} {served.currency}".encode()))
        if tells_cached_tokens(exchange):
            found.append((b"x-esclusa-cached-tokens", b"%d" % exchange.usage.cached_tokens))
    if exchange.request is not None and exchange.request.ignored_hints:
        found.append((b"x-esclusa-ignored", ", ".join(exchange.request.ignored_hints).encode()))
    if exchange.reservation is not None:
        for name, value in ratelimit_headers(exchange.reservation).items():
            found.append((_NAMES.get(name) or name.encode(), header_value(value)))
    return found


def tells_cached_tokens(exchange: Exchange) -> bool:
    return exchange.decision is None or exchange.decision.obligations.cached_tokens == "show"


_NAMES = {
    name: name.encode()
    for kind in ("requests", "tokens")
    for name in (f"x-ratelimit-limit-{kind}", f"x-ratelimit-remaining-{kind}", f"x-ratelimit-reset-{kind}")
}


@lru_cache(maxsize=4096)
def header_value(text: str) -> bytes:
    """Printable ASCII on one line, whatever a policy's author wrote."""
    if text.isascii() and text.isprintable():
        return text.encode()
    return "".join(sign if sign.isprintable() else " " for sign in text).encode("ascii", "replace")
