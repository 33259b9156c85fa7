"""Response headers that explain an answer: the model, the route and its reason, the policy, limits, cost. Pure."""

from __future__ import annotations

from gateway.api.http.header_values import Headers, header_value
from gateway.flow.answer import Bill
from gateway.flow.stages import Reserved
from gateway.limits.headers import ratelimit_headers


def answer_headers(reserved: Reserved, bill: Bill | None) -> Headers:
    """`bill` once the cost is known; a stream sends its headers before that."""
    served, plan, timings = reserved.served, reserved.plan, reserved.timings
    found: Headers = [
        (b"x-esclusa-audit-id", str(reserved.request_id).encode()),
        (b"x-esclusa-model", header_value(served.id)),
        (b"x-esclusa-route", plan.route.encode()),
        (b"x-esclusa-route-reason", header_value(plan.reason)),
        (b"x-esclusa-policy-version", b"%d" % reserved.decision.policy_version),
    ]
    if timings.overhead_us is not None:
        found.append((b"x-esclusa-overhead-ms", b"%.2f" % (timings.overhead_us / 1e3)))
    if bill is not None:
        found.append((b"x-esclusa-cost", f"{bill.cost_micro / 1e6:.6f} {served.currency}".encode()))
        if tells_cached_tokens(reserved):
            found.append((b"x-esclusa-cached-tokens", b"%d" % bill.usage.cached_tokens))
    if reserved.request.ignored_hints:
        found.append((b"x-esclusa-ignored", ", ".join(reserved.request.ignored_hints).encode()))
    for name, value in ratelimit_headers(reserved.reservation).items():
        found.append((_NAMES.get(name) or name.encode(), header_value(value)))
    return found


def tells_cached_tokens(reserved: Reserved) -> bool:
    return reserved.decision.obligations.cached_tokens == "show"


_NAMES = {
    name: name.encode()
    for kind in ("requests", "tokens")
    for name in (f"x-ratelimit-limit-{kind}", f"x-ratelimit-remaining-{kind}", f"x-ratelimit-reset-{kind}")
}
