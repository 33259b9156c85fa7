"""Nobody grants beyond their own rights, nobody locks everybody out; pure, over pairs of policies."""

from __future__ import annotations

import pytest

from gateway.access.decision.compiled_policy import Snapshot
from gateway.access.decision.compiler import compile_policy
from gateway.access.decision.evaluator import evaluate
from gateway.access.document.parsing import parse_policy
from gateway.access.history.grants import first_objection
from tests.fakes.policies import when
from tests.fakes.policy_stage import CALLERS, CATALOG, SEED

TEXT = SEED.read_text(encoding="utf-8")


def with_rule(line: str, text: str = TEXT) -> str:
    return text.replace("\nlimits:\n", f"\n  - {line}\n\nlimits:\n")


def compiled(text: str) -> Snapshot:
    return compile_policy(parse_policy(text, name="p"), version=1, catalog=CATALOG)


def objection(after: str, author: str, before: str = TEXT, *, four_eyes: bool = False) -> str | None:
    assert after != before
    found = first_objection(compiled(before), compiled(after), CALLERS[author], when(), four_eyes=four_eyes)
    return found.code if found is not None else None


BEYOND = [
    pytest.param(
        TEXT.replace("actions: [policy.read, policy.write]", "actions: [policy.read, policy.write, audit.read]"),
        id="an action for an own role",
    ),
    pytest.param(
        with_rule("{id: x, effect: allow, subjects: {roles: [employee]}, actions: [identity.write]}"),
        id="an action for another role",
    ),
    pytest.param(
        with_rule('{id: x, effect: allow, subjects: {principals: ["https://idp.test#eva"]}, actions: [content.read]}'),
        id="an action for a person",
    ),
    pytest.param(
        TEXT.replace("  policy-admin:\n", "  policy-admin:\n    inherits: [auditor]\n"), id="an inherited action"
    ),
    pytest.param(
        TEXT.replace("  employee:\n", "  employee:\n    inherits: [platform-admin]\n"), id="an inherited role"
    ),
    pytest.param(
        TEXT + '\nroleBindings:\n  - {id: b, roles: [platform-admin], principals: ["https://idp.test#petra"]}\n',
        id="a binding",
    ),
    pytest.param(
        TEXT + "\nroleMappings:\n  - {provider: x, claim: groups, equals: g, roles: [auditor]}\n", id="a mapping"
    ),
    pytest.param(
        TEXT.replace("subjects: {roles: [auditor]}", "subjects: {any: true}").replace(
            "given: {roles: [auditor], action: content.read}", "given: {roles: [operator], action: content.read}"
        ),
        id="everybody",
    ),
    pytest.param(
        with_rule(
            "{id: x, effect: allow, subjects: {roles: [policy-admin]}, actions: [chat], models: {groups: [small]}}"
        )
        .replace("  - name: a policy administrator uses no model", "  - name: skipped")
        .replace(
            "given: {roles: [policy-admin], action: chat, model: smollm2-135m-instruct}",
            "given: {action: chat, model: auto}",
        ),
        id="model use for an administrative role",
    ),
    pytest.param(
        with_rule(
            '{id: x, effect: allow, subjects: {principals: ["https://idp.test#petra"]}, actions: [chat],'
            " models: {groups: [small]}}"
        ),
        id="model use for oneself by name",
    ),
    pytest.param(
        TEXT + '\nroleBindings:\n  - {id: b, roles: [analyst], principals: ["https://idp.test#petra"]}\n',
        id="model use for oneself by binding",
    ),
]


@pytest.mark.parametrize("text", BEYOND)
def test_nobody_grants_beyond_their_own_rights(text: str) -> None:
    assert objection(text, "petra") == "cannot_grant_beyond_own_rights"


def test_lifting_a_deny_on_an_action_one_does_not_hold_is_refused() -> None:
    denied = with_rule("{id: x, effect: deny, subjects: {roles: [employee]}, actions: [audit.read]}")
    assert objection(TEXT, "petra", denied) == "cannot_grant_beyond_own_rights"


def test_letting_a_binding_live_longer_is_a_grant() -> None:
    text = TEXT + '\nroleBindings:\n  - {id: b, roles: [auditor], principals: ["i#s"], expires: "%s"}\n'
    shorter, longer = text % "2026-06-01T00:00:00Z", text % "2026-07-01T00:00:00Z"
    assert objection(longer, "petra", shorter) == "cannot_grant_beyond_own_rights"


def test_widening_the_conditions_of_a_grant_is_a_grant() -> None:
    narrow = with_rule(
        "{id: x, effect: allow, subjects: {roles: [employee]}, actions: [audit.read], when: {clients: [a]}}"
    )
    assert objection(narrow.replace("clients: [a]", "clients: [a, b]"), "petra", narrow) is not None


@pytest.mark.parametrize(
    "text",
    [
        with_rule("{id: x, effect: allow, subjects: {roles: [auditor]}, actions: [chat], models: {groups: [small]}}"),
        with_rule("{id: x, effect: deny, subjects: {roles: [employee]}, actions: [audit.read]}"),
        with_rule("{id: x, effect: allow, subjects: {roles: [auditor]}, actions: [batches.use]}"),
        TEXT.replace("actions: [engine.operate, models.read]", "actions: [models.read]"),
        TEXT.replace("large: [qwen2.5-coder-0.5b-instruct]", "large: [qwen2.5-coder-0.5b-instruct, another]"),
        TEXT + '\nroleBindings:\n  - {id: b, roles: [policy-admin], principals: ["https://idp.test#eva"]}\n',
    ],
)
def test_what_an_author_holds_or_takes_away_may_be_changed(text: str) -> None:
    assert objection(text, "petra") is None


LOCKED = [
    pytest.param(
        with_rule("{id: x, effect: deny, subjects: {any: true}, actions: [policy.write]}"), id="everybody is refused"
    ),
    pytest.param(
        TEXT.replace("actions: [policy.read, policy.write]", "actions: [policy.read]").replace(
            "      - policy.write\n", ""
        ),
        id="nobody is granted it",
    ),
    pytest.param(
        TEXT.replace(
            "actions: [policy.read, policy.write]",
            'actions: [policy.read, policy.write]\n    when: {time: {tz: UTC, from: "00:00", to: "23:59"}}',
        ).replace("      - policy.write\n", ""),
        id="only at some hours",
    ),
]


@pytest.mark.parametrize("text", LOCKED)
def test_the_last_administrator_cannot_be_removed(text: str) -> None:
    assert objection(text, "plato") == "would_lock_out"


@pytest.mark.parametrize("action", ["policy.read", "policy.write"])
@pytest.mark.parametrize("author", ["petra", "plato"])
def test_an_author_who_keeps_the_right_cannot_leave_it_to_a_condition_alone(author: str, action: str) -> None:
    """The author could still take the change back; whoever comes when the condition fails could not."""
    other = "policy.read" if action == "policy.write" else "policy.write"
    text = TEXT.replace(f"      - {action}\n", "").replace(
        "actions: [policy.read, policy.write]",
        f"actions: [{other}]\n\n  - id: conditional\n    effect: allow\n"
        f"    subjects: {{roles: [policy-admin, platform-admin]}}\n    actions: [{action}]\n"
        "    when: {dataClass: {max: restricted}}",
    )
    after = compiled(text)
    assert evaluate(after, CALLERS[author], action, None, when()).allowed
    found = first_objection(compiled(TEXT), after, CALLERS[author], when(), four_eyes=False)
    assert found is not None
    assert (found.code, action in found.message, "nobody" in found.message) == ("would_lock_out", True, True)


def test_with_four_eyes_somebody_must_stay_able_to_approve() -> None:
    text = TEXT.replace("      - policy.approve\n", "")
    assert objection(text, "plato", four_eyes=True) == "would_lock_out"
    assert objection(text, "plato") is None


@pytest.mark.parametrize("kept", ["policy.read", "policy.write"])
def test_nobody_locks_themselves_out(kept: str) -> None:
    text = TEXT.replace("actions: [policy.read, policy.write]", f"actions: [{kept}]")
    assert (objection(text, "petra"), objection(text, "plato")) == ("would_lock_out", None)
