"""Response headers that explain an answer: the model, the route and its reason, the policy, limits, cost. Pure."""

from __future__ import annotations

from gateway.flow.values import Exchange
from gateway.limits.headers import ratelimit_headers

Headers = list[tuple[bytes, bytes]]


def answer_headers(exchange: Exchange, *, final: bool) -> Headers:
    """`final` once the cost is known; a stream sends its headers before that."""
    found: dict[str, str] = {"x-esclusa-audit-id": str(exchange.request_id)}
    if exchange.served is not None:
        found["x-esclusa-model"] = exchange.served.id
    if exchange.plan is not None:
        found["x-esclusa-route"] = exchange.plan.route
        found["x-esclusa-route-reason"] = exchange.plan.reason
    if exchange.decision is not None:
        found["x-esclusa-policy-version"] = str(exchange.decision.policy_version)
    if exchange.timings.overhead_us is not None:
        found["x-esclusa-overhead-ms"] = f"{exchange.timings.overhead_us / 1e3:.2f}"
    if final and exchange.served is not None:
        found["x-esclusa-cost"] = f"{exchange.cost_micro / 1e6:.6f} {exchange.served.currency}"
        found["x-esclusa-cached-tokens"] = str(exchange.usage.cached_tokens)
    if exchange.reservation is not None:
        found |= ratelimit_headers(exchange.reservation)
    return [(name.encode(), header_value(value)) for name, value in found.items()]


def header_value(text: str) -> bytes:
    """Printable ASCII on one line, whatever a policy's author wrote."""
    if text.isascii() and text.isprintable():
        return text.encode()
    return "".join(sign if sign.isprintable() else " " for sign in text).encode("ascii", "replace")
