"""How the parts of a document must fit together, what is only warned about, and what wildcards reach."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.access.decision.compiler import find_warnings
from gateway.access.document.patterns import compile_pattern
from gateway.access.document.problems import PolicyInvalid
from gateway.flow.values import ModelCard
from tests.fakes.policies import CARDS, LARGE, SMALL, decide, policy, who

ALLOW = "{id: a, effect: allow, subjects: {roles: [r]}, actions: [chat], models: {ids: [acme/small]}}"


def problems_in(body: str) -> list[str]:
    with pytest.raises(PolicyInvalid) as raised:
        policy(body)
    return [problem.message for problem in raised.value.problems]


def warnings_in(body: str) -> list[str]:
    return [warning.message for warning in find_warnings(policy(body))]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f"rules: [{ALLOW}]", "role `r` is not declared under `roles`"),
        ("roles: {r: {inherits: [x]}}\nrules: []", "role `x` is not declared under `roles`"),
        ("roleBindings: [{id: b, roles: [x], principals: [i#s]}]\nrules: []", "role `x` is not declared"),
        ("roleMappings: [{provider: p, claim: groups, equals: g, roles: [x]}]\nrules: []", "role `x` is not declared"),
        ("limits: [{id: l, scope: {role: x}, requests: 1}]\nrules: []", "role `x` is not declared"),
        (f"roles: {{r: {{}}}}\nrules: [{ALLOW.replace('ids: [acme/small]', 'groups: [g]')}]", "model group `g` is not"),
        (f"roles: {{r: {{}}}}\nrules: [{ALLOW}, {ALLOW}]", "`a` is already used in `rules`"),
        ("roles: {a: {inherits: [b]}, b: {inherits: [a]}}\nrules: []", "roles inherit from each other: a -> b -> a"),
        ("roles: {a: {inherits: [a]}}\nrules: []", "roles inherit from each other: a -> a"),
        ("rules: [{id: 'builtin:x', effect: deny, subjects: {any: true}}]", "ids that start with `builtin:`"),
        ("rules: [{id: a, effect: allow, subjects: {any: true}}]", "an allow rule must list its `actions`"),
        ("rules: [{id: a, effect: allow, subjects: {any: true}, actions: [chat]}]", "must name its `models`"),
        (
            "rules: [{id: a, effect: allow, subjects: {any: true}, actions: [audit.read], models: {any: true}}]",
            "`audit.read` has no model",
        ),
        (
            "rules: [{id: a, effect: allow, subjects: {any: true}, actions: [chat, audit.read], models: {any: true}}]",
            "are in one rule",
        ),
        (
            "rules: [{id: a, effect: allow, subjects: {any: true}, actions: [batches.use], models: {any: true}}]",
            "`batches.use` has no model",
        ),
        (
            "rules: [{id: a, effect: allow, subjects: {any: true}, actions: [chat, batches.use], models: {any: true}}]",
            "`chat` and `batches.use` are in one rule",
        ),
        (
            "rules: [{id: a, effect: deny, subjects: {any: true}, obligations: {maxOutputTokens: 1}}]",
            "a deny rule has no obligations",
        ),
        (
            f"roles: {{r: {{}}}}\nrules: [{ALLOW}, {ALLOW.replace('id: a', 'id: b').replace('allow', 'deny')}]",
            "`b` and `a` say allow and deny for exactly the same case",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(body: str, message: str) -> None:
    assert any(message in problem for problem in problems_in(body))


def test_a_very_long_chain_of_roles_compiles() -> None:
    chain = "\n".join(f"  r{n}: {{inherits: [r{n + 1}]}}" for n in range(3000))
    snapshot = policy(f"roles:\n{chain}\n  r3000: {{}}\nrules: []")
    assert len(snapshot.closures["r0"]) == 3001


def test_a_catalog_id_that_looks_like_a_pattern_is_refused() -> None:
    with pytest.raises(PolicyInvalid, match=r"`\*` is only for patterns"):
        policy("rules: []", catalog=[ModelCard("acme/*", "b")])


@pytest.mark.parametrize(
    ("body", "warning"),
    [
        (
            f"roles: {{r: {{}}}}\nrules: [{ALLOW.replace('acme/small', 'acme/smal')}]",
            "`acme/smal` matches no model of the catalog",
        ),
        ("modelGroups: {g: ['gone/*']}\nrules: []", "`gone/*` matches no model of the catalog"),
        (f"roles: {{r: {{}}, x: {{}}}}\nrules: [{ALLOW}]", "role `x` gives nothing: no allow rule names it"),
        (
            f"roles: {{r: {{}}}}\nrules: [{ALLOW}, {{id: d, effect: deny, subjects: {{any: true}}}}]",
            "`a` can never decide: `d` covers every case of it",
        ),
        (
            f"roles: {{r: {{}}}}\nrules: [{ALLOW}, {ALLOW.replace('id: a', 'id: z')}]",
            "`z` can never decide: `a` covers every case of it",
        ),
        (
            "roles: {r: {}, s: {inherits: [r]}}\nrules:\n"
            "  - {id: a, effect: allow, subjects: {roles: [r]}, actions: [chat], models: {any: true}}\n"
            "  - {id: b, effect: allow, subjects: {roles: [s]}, actions: [chat], models: {ids: [acme/small]}}",
            "`b` can never decide: `a` covers every case of it",
        ),
    ],
)
def test_what_can_have_no_effect_is_warned_about(body: str, warning: str) -> None:
    assert warning in warnings_in(body)


def test_a_rule_narrowed_by_conditions_shadows_nothing() -> None:
    deny = "{id: d, effect: deny, subjects: {any: true}, when: {dataClass: {min: restricted}}}"
    assert warnings_in(f"roles: {{r: {{}}}}\nrules: [{ALLOW}, {deny}]") == []


def test_a_parent_role_that_only_its_children_use_is_not_empty() -> None:
    assert warnings_in(f"roles: {{base: {{}}, r: {{inherits: [base]}}}}\nrules: [{ALLOW}]") == []


@pytest.mark.parametrize(
    ("pattern", "model", "matches"),
    [
        ("acme/llama-*", "acme/llama-3", True),
        ("acme/llama-*", "acme/llama-", True),
        ("acme/llama-*", "acme/llama-3/base", False),
        ("acme/llama-*", "ACME/llama-3", False),
        ("acme/*", "acme/x", True),
        ("acme/*", "acme/x/y", False),
        ("*/x", "acme/x", True),
        ("*", "acme", True),
        ("*", "acme/x", False),
        ("acme/x", "acme/x ", False),
        ("acme/x", "acme/x\u200b", False),
        ("acme/*", "acme/*", False),
        ("acme/llama-*", "acme/llama-*", False),
    ],
)
def test_a_star_stands_for_one_segment_or_its_end(pattern: str, model: str, matches: bool) -> None:
    assert compile_pattern(pattern).matches(model) is matches


WILD = """
roles: {r: {}}
rules:
  - {id: a, effect: allow, subjects: {roles: [r]}, actions: [chat], models: {ids: ["acme/*"]}}
"""


def test_a_wildcard_grant_does_not_reach_a_model_added_later() -> None:
    snapshot = policy(WILD, known=frozenset({"acme/small"}))
    assert (decide(snapshot, who("r"), SMALL).allowed, decide(snapshot, who("r"), LARGE).allowed) == (True, False)


def test_a_model_added_later_is_reached_when_it_is_labeled_for_it() -> None:
    later = ModelCard("acme/later", "b", labels={"auto_grant": "true"})
    snapshot = policy(WILD, catalog=[*CARDS, later], known=frozenset({"acme/small"}))
    assert decide(snapshot, who("r"), later).allowed


def test_a_wildcard_deny_reaches_every_model_at_once() -> None:
    deny = '  - {id: d, effect: deny, subjects: {any: true}, models: {ids: ["acme/l*"]}}\n'
    allow = WILD.replace('"acme/*"', "acme/large")
    assert not decide(policy(allow + deny, known=frozenset()), who("r"), LARGE).allowed


def test_a_grant_by_label_follows_the_label() -> None:
    body = WILD.replace('ids: ["acme/*"]', "labels: {hosting: internal}")
    snapshot = policy(body, known=frozenset())
    assert (decide(snapshot, who("r"), SMALL).allowed, decide(snapshot, who("r"), LARGE).allowed) == (True, False)


def test_a_budget_that_cannot_count_a_models_currency_is_warned_of() -> None:
    dear = (replace(SMALL, price_out_micro=5, currency="COP"), replace(LARGE, price_out_micro=5))
    found = find_warnings(
        policy("rules: []\nlimits:\n  - {id: eur, scope: {each: user}, window: month, cost_eur: 5}\n", dear)
    )
    assert [warning.message for warning in found if warning.kind == "other"] == [
        "`eur` counts EUR; it refuses what is priced in another currency: `acme/small`"
    ]
