"""Which limits come with a decision, and what their counters are called."""

from __future__ import annotations

import pytest

from gateway.access.document.problems import PolicyInvalid
from gateway.flow.values import LimitRule, ModelCard, Principal
from tests.fakes.policies import AUTO, LARGE, SMALL, decide, policy, when, who

HEAD = """
roles: {r: {department: risk}, s: {}}
rules: [{id: g, effect: allow, subjects: {any: true}, actions: [chat], models: {any: true}}]
limits:
"""


def limits(line: str, principal: Principal, model: ModelCard = SMALL) -> list[LimitRule]:
    return list(decide(policy(HEAD + f"  - {line}"), principal, model).limits)


def keys(scope: str, principal: Principal, model: ModelCard = SMALL) -> list[str]:
    return [rule.scope_key for rule in limits(f"{{id: l, scope: {scope}, requests: 5}}", principal, model)]


@pytest.mark.parametrize(
    ("scope", "principal", "expected"),
    [
        ("{each: user}", who(), ["user:acme/https://idp/ana"]),
        ("{each: department}", who(department="sales"), ["department:acme/sales"]),
        ("{each: department}", who(), []),
        ("{each: department}", who("r"), ["department:acme/risk"]),
        ("{each: department}", who("r", department="sales"), ["department:acme/sales"]),
        ("{each: role}", who("s", "r"), ["role:acme/r", "role:acme/s"]),
        ("{each: tenant}", who(), ["tenant:acme"]),
        ("{each: model}", who(), ["model:acme/small"]),
        ("{each: key}", who(kind="service", credential_id="k-1"), ["key:acme/k-1"]),
        ("{each: key}", who(kind="service", credential_id="k-2", key_lineage="k-1"), ["key:acme/k-1"]),
        ("{each: key}", who(credential_id="token-17"), []),
        ("{department: sales}", who(department="sales"), ["department:acme/sales"]),
        ("{department: sales}", who(department="risk"), []),
        ("{department: Sales}", who(department=" SALES "), ["department:acme/sales"]),
        ("{each: department}", who(department="Sales"), ["department:acme/sales"]),
        ("{department: sales, model: acme/small}", who(department="sales"), ["department:acme/sales|model:acme/small"]),
        ("{department: sales, model: acme/large}", who(department="sales"), []),
        ("{tenant: acme, role: s}", who("s"), ["role:acme/s|tenant:acme"]),
        ("{tenant: acme, role: s}", who(), []),
        ("{purpose: support}", who(), []),
        ("{role: r}", who("r"), ["role:acme/r"]),
        ("{role: r}", who("s"), []),
        ("{tenant: acme}", who(), ["tenant:acme"]),
        ("{tenant: rival}", who(), []),
        ("{user: https://idp#ana}", who(), ["user:acme/https://idp/ana"]),
        ("{user: https://idp#eva}", who(), []),
        ("{model: acme/small}", who(), ["model:acme/small"]),
        ('{model: "acme/*"}', who(), ["model:acme/*"]),
        ("{model: acme/large}", who(), []),
        ("{each: user, department: sales}", who(department="sales"), ["user:acme/https://idp/ana"]),
        ("{each: user, department: sales}", who(), []),
        ("{each: user, model: acme/large}", who(), []),
    ],
)
def test_the_counter_is_named_by_whom_the_limit_counts(scope: str, principal: Principal, expected: list[str]) -> None:
    assert keys(scope, principal) == expected


def test_a_budget_for_a_department_a_model_and_a_purpose_is_one_counter() -> None:
    snapshot = policy(
        HEAD + "  - {id: l, scope: {department: finance, model: acme/small, purpose: closing}, cost_eur: 500, "
        "window: month}\n"
        "  - {id: p, scope: {purpose: closing}, requests: 5}\n"
        "  - {id: u, scope: {each: user, purpose: closing}, requests: 5}\n"
    )
    finance = who(department="Finance")

    def counters(purpose: str | None, model: ModelCard = SMALL, caller: Principal = finance) -> list[str]:
        found = decide(snapshot, caller, model, context=when(purpose=purpose))
        return [rule.scope_key for rule in found.limits]

    everywhere = ["purpose:acme/closing", "user:acme/https://idp/ana"]
    assert counters("closing") == ["department:acme/finance|purpose:acme/closing|model:acme/small", *everywhere]
    assert counters("closing", LARGE) == counters("closing", caller=who(department="sales")) == everywhere
    assert counters("another") == counters(None) == []


def test_a_virtual_model_has_no_counter_of_its_own() -> None:
    assert keys("{each: model}", who(), AUTO) == []
    assert keys("{each: model}", who(), LARGE) == ["model:acme/large"]


def test_no_two_people_share_a_counter_by_a_slash_in_their_name() -> None:
    first = keys("{each: user}", who(issuer="https://idp", subject="a/b"))
    second = keys("{each: user}", who(issuer="https://idp/a", subject="b"))
    assert first != second


def test_quantities_windows_and_money_reach_the_limiter() -> None:
    [rule] = limits(
        "{id: l, scope: {each: user}, window: month, tz: America/Bogota, tokens: 9, tokensIn: 8, tokensOut: 7,"
        " concurrent: 6, cost_eur: 1.5, warnAt: [0.95, 0.8], onStoreError: deny}",
        who(),
    )
    assert (rule.id, rule.scope, rule.window, rule.window_s, rule.tz) == ("l", "user", "month", None, "America/Bogota")
    assert (rule.tokens, rule.tokens_in, rule.tokens_out, rule.concurrent, rule.requests) == (9, 8, 7, 6, None)
    assert (rule.cost_micro, rule.currency, rule.warn_at, rule.on_store_error) == (
        1_500_000,
        "EUR",
        (0.8, 0.95),
        "deny",
    )


def test_a_window_in_seconds_is_passed_as_seconds() -> None:
    [rule] = limits("{id: l, scope: {each: user}, window: 90s, requests: 5}", who())
    assert rule.window_s == 90


def test_a_short_window_may_slide() -> None:
    [rule] = limits("{id: l, scope: {each: user}, window: 90s, requests: 5, sliding: true}", who())
    assert rule.sliding


def test_a_calendar_window_cannot_slide() -> None:
    with pytest.raises(PolicyInvalid, match="follow the calendar"):
        limits("{id: l, scope: {each: user}, window: month, requests: 5, sliding: true}", who())


def test_a_refusal_carries_no_limits() -> None:
    snapshot = policy(HEAD + "  - {id: l, scope: {each: user}, requests: 5}")
    assert decide(snapshot, who(), action="embeddings").limits == ()
