"""Response headers that explain an answer: the model, the route and its reason, the policy, limits, cost. Pure."""

from __future__ import annotations

from gateway.flow.values import Exchange
from gateway.limits.headers import ratelimit_headers

Headers = list[tuple[bytes, bytes]]


def answer_headers(exchange: Exchange, *, final: bool) -> Headers:
    """`final` once the cost is known; a stream sends its headers before that."""
    found: Headers = [(b"x-esclusa-audit-id", str(exchange.request_id).encode())]
    served, timings = exchange.served, exchange.timings
    if served is not None:
        found.append((b"x-esclusa-model", header_value(served.id)))
    if exchange.plan is not None:
        found.append((b"x-esclusa-route", exchange.plan.route.encode()))
        found.append((b"x-esclusa-route-reason", header_value(exchange.plan.reason)))
    if exchange.decision is not None:
        found.append((b"x-esclusa-policy-version", b"%d" % exchange.decision.policy_version))
    if timings.overhead_us is not None:
        found.append((b"x-esclusa-overhead-ms", b"%.2f" % (timings.overhead_us / 1e3)))
    if final and served is not None:
        found.append((b"x-esclusa-cost", f"{exchange.cost_micro / 1e6:.6f} {served.currency}".encode()))
        found.append((b"x-esclusa-cached-tokens", b"%d" % exchange.usage.cached_tokens))
    if exchange.reservation is not None:
        limits = ratelimit_headers(exchange.reservation)
        found += [(name.encode(), header_value(value)) for name, value in limits.items()]
    return found


def header_value(text: str) -> bytes:
    """Printable ASCII on one line, whatever a policy's author wrote."""
    if text.isascii() and text.isprintable():
        return text.encode()
    return "".join(sign if sign.isprintable() else " " for sign in text).encode("ascii", "replace")
