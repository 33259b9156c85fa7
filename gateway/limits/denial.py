"""The error a caller gets for a refused claim. Pure: `LimitVerdict` in, `GatewayError` out."""

from __future__ import annotations

from math import ceil

from gateway.errors import BudgetExceeded, GatewayError, RateLimited, Unavailable
from gateway.flow.values import LimitVerdict
from gateway.limits.headers import ratelimit_headers

CONTENTION_S = 60.0
"""A budget that frees itself sooner than this is only held by requests in flight: worth another try."""


def denial(verdict: LimitVerdict) -> GatewayError:
    """429 `requests_rate_limited`, `tokens_rate_limited` or `budget_exceeded`; 503 `limits_unavailable`.

    Raises `ValueError` for a verdict that allows.
    """
    if verdict.allowed:
        raise ValueError("only a refusal becomes an error")
    headers = ratelimit_headers(verdict)
    if verdict.kind == "store":
        error = Unavailable(
            verdict.reason,
            code="limits_unavailable",
            hint="try again shortly; an operator must restore the store of the limits",
            retry_after_s=max(1, ceil(verdict.retry_after_s or 1)),
            detail=f"rule {verdict.rule_id}",
        )
        error.headers.update(headers)
        return error
    if verdict.kind == "budget":
        if verdict.retry_after_s is not None and verdict.retry_after_s < CONTENTION_S:
            return BudgetExceeded(
                verdict.reason,
                hint="try again soon: requests in flight give back what they do not use, or the window ends",
                headers={**headers, "x-should-retry": "true"},
            )
        return BudgetExceeded(
            verdict.reason, hint="wait for the reset, or ask an administrator to raise the budget", headers=headers
        )
    if verdict.retry_after_s is None:
        headers["x-should-retry"] = "false"
    code = "tokens_rate_limited" if verdict.kind == "tokens" else "requests_rate_limited"
    hint = {
        "tokens": "wait as long as `retry-after` says, or send a shorter prompt or a smaller `max_tokens`",
        "concurrency": "wait for one of your running requests to end",
    }.get(verdict.kind or "", "wait as long as `retry-after` says")
    if verdict.retry_after_s is None:
        hint = "this request alone is larger than the whole window; send a shorter prompt"
    return RateLimited(verdict.reason, code=code, hint=hint, headers=headers, detail=f"rule {verdict.rule_id}")
