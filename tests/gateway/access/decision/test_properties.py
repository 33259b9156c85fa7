"""What holds for every policy: order means nothing, deny overrides, doubt denies, explain is what is enforced."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.access.decision.compiled_policy import Snapshot
from gateway.access.decision.compiler import compile_policy
from gateway.access.decision.evaluator import evaluate
from gateway.access.decision.explain import explain
from gateway.access.document.model import PolicySet
from gateway.flow.context import RequestContext
from gateway.flow.values import Decision, ModelCard, Principal
from tests.fakes.policies import CARDS, when, who

ROLES = ("a", "b", "c")
CATALOG = (*CARDS, ModelCard("plain", "b", labels={"hosting": "internal"}))

conditions = st.fixed_dictionaries(
    {},
    optional={
        "dataClass": st.fixed_dictionaries({"max": st.sampled_from(["public", "internal", "confidential"])}),
        "purpose": st.fixed_dictionaries({"in": st.just(("support",))}),
        "sourceCidr": st.just(("10.0.0.0/8",)),
        "clients": st.just(("chat-ui",)),
        "time": st.just({"tz": "America/Lima", "days": ("mon-fri",), "from": "08:00", "to": "18:00"}),
    },
)
subjects = st.one_of(
    st.just({"any": True}),
    st.fixed_dictionaries(
        {"roles": st.sets(st.sampled_from(ROLES), min_size=1).map(lambda found: tuple(sorted(found)))},
        optional={"types": st.just(("user",)), "departments": st.just(("risk",)), "tenants": st.just(("acme",))},
    ),
    st.just({"principals": ("https://idp#ana",)}),
)
models = st.one_of(
    st.just({"any": True}),
    st.just({"ids": ("acme/*",)}),
    st.just({"ids": ("acme/small", "plain")}),
    st.just({"labels": {"hosting": "external"}}),
)


def rule(effect: str) -> st.SearchStrategy[dict[str, Any]]:
    more = {"when": conditions}
    if effect == "allow":
        more["obligations"] = st.fixed_dictionaries({"maxOutputTokens": st.integers(1, 9000)})
    return st.fixed_dictionaries(
        {"effect": st.just(effect), "subjects": subjects, "models": models, "actions": st.just(("chat",))},
        optional=more,
    )


rule_lists = st.lists(st.one_of(rule("allow"), rule("deny")), max_size=8)
principals = st.builds(
    lambda roles, department, tenant, client, subject: who(
        *roles, department=department, tenant=tenant, client_id=client, subject=subject
    ),
    st.sets(st.sampled_from([*ROLES, "unknown"])),
    st.sampled_from([None, "risk", "sales"]),
    st.sampled_from(["acme", "rival"]),
    st.sampled_from([None, "chat-ui"]),
    st.sampled_from(["ana", "eva"]),
)
contexts = st.builds(
    lambda hours, ip, data_class, purpose: when(
        datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=hours), ip=ip, data_class=data_class, purpose=purpose
    ),
    st.integers(0, 24 * 14),
    st.sampled_from([None, "10.1.1.1", "8.8.8.8", "garbage"]),
    st.sampled_from([None, "public", "internal", "restricted", "garbage"]),
    st.sampled_from([None, "support", "other"]),
)
cards = st.sampled_from(CATALOG)


def case_of(rule: dict[str, Any]) -> dict[str, Any]:
    """Whom, what and when a rule is about; an empty `when` is none."""
    return {name: value for name, value in rule.items() if value and name not in ("id", "effect", "obligations")}


def compiled(rules: list[dict[str, Any]], prefix: str = "r") -> Snapshot:
    """Rules keep the id of their place; a rule that contradicts an earlier one exactly is left out."""
    kept: list[dict[str, Any]] = []
    for number, one in enumerate(rules):
        if not any(other["effect"] != one["effect"] and case_of(other) == case_of(one) for other in kept):
            kept.append({"id": f"{prefix}{number}", **one})
    document = PolicySet.model_validate(
        {
            "apiVersion": "esclusa/v1",
            "kind": "PolicySet",
            "metadata": {"name": "p"},
            "roles": {"a": {}, "b": {"inherits": ("a",)}, "c": {}},
            "rules": tuple(kept),
        }
    )
    return compile_policy(document, version=1, catalog=CATALOG)


def chat(snapshot: Snapshot, principal: Principal, card: ModelCard, context: RequestContext) -> Decision:
    return evaluate(snapshot, principal, "chat", card, context)


@given(rule_lists, principals, cards, contexts)
@settings(max_examples=150, deadline=None)
def test_explain_is_what_is_enforced(
    rules: list[dict[str, Any]], principal: Principal, card: ModelCard, context: RequestContext
) -> None:
    snapshot = compiled(rules)
    decision, found = chat(snapshot, principal, card, context), explain(snapshot, principal, "chat", card, context)
    assert found.decision == decision
    assert {trace.id for trace in found.rules if trace.part != "unmatched"} == set(decision.matched)
    assert all(trace.why for trace in found.rules if trace.part == "unmatched")
    assert found.having("decides") == (() if decision.rule_id is None else (decision.rule_id,))


@given(rule_lists, principals, cards, contexts, st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_the_order_of_rules_means_nothing(
    rules: list[dict[str, Any]], principal: Principal, card: ModelCard, context: RequestContext, draw: Any
) -> None:
    snapshot = compiled(rules)
    shuffled = list(snapshot.document.rules)
    draw.shuffle(shuffled)
    other = compile_policy(snapshot.document.model_copy(update={"rules": tuple(shuffled)}), version=1, catalog=CATALOG)
    first, second = chat(snapshot, principal, card, context), chat(other, principal, card, context)
    assert replace(second, policy_sha256=first.policy_sha256) == first


@given(rule_lists, rule("deny"), principals, cards, contexts)
@settings(max_examples=100, deadline=None)
def test_another_deny_rule_never_opens_anything(
    rules: list[dict[str, Any]],
    deny: dict[str, Any],
    principal: Principal,
    card: ModelCard,
    context: RequestContext,
) -> None:
    before = compiled(rules)
    after = compiled(
        [
            {"id": "extra", **deny},
            *[rule.model_dump(by_alias=True, exclude_unset=True) for rule in before.document.rules],
        ]
    )
    if chat(after, principal, card, context).allowed:
        assert chat(before, principal, card, context).allowed


@given(rule_lists, principals, cards, contexts)
@settings(max_examples=100, deadline=None)
def test_a_matching_deny_overrides_every_grant(
    rules: list[dict[str, Any]], principal: Principal, card: ModelCard, context: RequestContext
) -> None:
    snapshot = compiled(rules)
    decision = chat(snapshot, principal, card, context)
    denies = {rule.id for rule in snapshot.rules if rule.deny}
    assert not (decision.allowed and denies & set(decision.matched))


@given(rule_lists, principals, cards, contexts)
@settings(max_examples=100, deadline=None)
def test_losing_evidence_never_opens_anything(
    rules: list[dict[str, Any]], principal: Principal, card: ModelCard, context: RequestContext
) -> None:
    """What is unknown (purpose, address) or garbled (data class) can only close doors."""
    snapshot = compiled(rules)
    blind = replace(context, purpose=None, data_class="garbage", client=replace(context.client, ip=None))
    if chat(snapshot, principal, card, blind).allowed:
        assert chat(snapshot, principal, card, context).allowed


@given(rule_lists, principals, cards, contexts)
@settings(max_examples=100, deadline=None)
def test_output_is_capped_by_the_strictest_matching_grant(
    rules: list[dict[str, Any]], principal: Principal, card: ModelCard, context: RequestContext
) -> None:
    snapshot = compiled(rules)
    decision = chat(snapshot, principal, card, context)
    caps = [
        rule.obligations.max_output_tokens
        for rule in snapshot.rules
        if rule.id in decision.matched and rule.obligations is not None and rule.obligations.max_output_tokens
    ]
    assert decision.obligations.max_output_tokens == (min(caps, default=None) if decision.allowed else None)
