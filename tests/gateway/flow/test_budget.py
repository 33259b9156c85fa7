"""What limits keep of themselves for a request that never ran."""

from __future__ import annotations

from gateway.flow.budget import requests_only
from gateway.flow.values import LimitRule


def test_limits_keep_only_their_count_of_requests() -> None:
    rules = (
        LimitRule("a", "user", "user:1", requests=5, tokens=9, tokens_in=8, tokens_out=7, concurrent=2, cost_micro=3),
        LimitRule("b", "user", "user:1", tokens=9),
    )
    assert requests_only(rules) == (LimitRule("a", "user", "user:1", requests=5),)
