"""Who may change what: no granting beyond own rights, no lock-out, four eyes, role bindings, dry runs, explanations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx2
import pytest

from gateway.flow.values import Effect, PastDecision
from tests.fakes.policy_stage import CALLERS, SEED, PolicyStage, policy_stage

TEXT = SEED.read_text(encoding="utf-8")
LARGE = "qwen2.5-coder-0.5b-instruct"


@pytest.fixture
async def stage(database_url: str) -> AsyncIterator[PolicyStage]:
    async with policy_stage(database_url) as stage:
        yield stage


@pytest.fixture
async def four_eyes(database_url: str) -> AsyncIterator[PolicyStage]:
    async with policy_stage(database_url, four_eyes=True) as stage:
        yield stage


def error(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def with_rule(line: str, text: str = TEXT) -> str:
    return text.replace("\nlimits:\n", f"\n  - {line}\n\nlimits:\n")


async def test_nobody_grants_beyond_their_own_rights(stage: PolicyStage) -> None:
    response = await stage.put(
        with_rule("{id: x, effect: allow, subjects: {roles: [employee]}, actions: [identity.write]}")
    )
    assert error(response) == (403, "cannot_grant_beyond_own_rights")
    assert stage.events[-1].error_code == "cannot_grant_beyond_own_rights"
    assert stage.service.version == 1


async def test_whoever_holds_an_action_may_grant_it(stage: PolicyStage) -> None:
    text = with_rule("{id: x, effect: allow, subjects: {roles: [employee]}, actions: [audit.read]}")
    assert (await stage.put(text, token="plato")).status_code == 200


async def test_model_use_is_granted_to_others_by_whoever_writes_the_policy(stage: PolicyStage) -> None:
    text = with_rule("{id: x, effect: allow, subjects: {roles: [auditor]}, actions: [chat], models: {groups: [small]}}")
    assert (await stage.put(text)).status_code == 200


async def test_taking_rights_away_needs_none(stage: PolicyStage) -> None:
    without = TEXT.replace("actions: [engine.operate, models.read]", "actions: [models.read]")
    assert (await stage.put(without)).status_code == 200


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            with_rule("{id: x, effect: deny, subjects: {any: true}, actions: [policy.write]}"), id="by a deny for all"
        ),
        pytest.param(
            TEXT.replace("      - policy.write\n", "").replace(
                "actions: [policy.read, policy.write]",
                "actions: [policy.read]\n\n  - id: conditional\n    effect: allow\n"
                "    subjects: {roles: [policy-admin, platform-admin]}\n    actions: [policy.write]\n"
                "    when: {dataClass: {max: restricted}}",
            ),
            id="by a condition that the author meets now",
        ),
    ],
)
async def test_the_last_administrator_cannot_be_removed(stage: PolicyStage, text: str) -> None:
    answer = await stage.put(text, token="plato")
    assert error(answer) == (409, "would_lock_out")
    assert "nobody could be sure to hold `policy.write`" in answer.json()["error"]["message"]
    assert stage.service.version == 1


async def test_nobody_locks_themselves_out(stage: PolicyStage) -> None:
    text = TEXT.replace("actions: [policy.read, policy.write]", "actions: [policy.read]")
    assert error(await stage.put(text, token="petra")) == (409, "would_lock_out")
    assert (await stage.put(text, token="plato")).status_code == 200


# ------------------------------------------------------------------------------------------ four eyes


async def propose(stage: PolicyStage, token: str = "petra") -> str:
    response = await stage.put(TEXT.replace("maxOutputTokens: 2048", "maxOutputTokens: 7"), token=token)
    assert response.status_code == 202
    return str(response.json()["proposal"]["id"])


async def test_with_four_eyes_a_change_waits_and_nothing_is_in_force(four_eyes: PolicyStage) -> None:
    proposal = await propose(four_eyes)
    listed = (await four_eyes.call("GET", "/policies/proposals", params={"state": "pending"})).json()
    assert [item["id"] for item in listed["data"]] == [proposal]
    assert four_eyes.service.version == 1


async def test_a_second_person_puts_it_in_force(four_eyes: PolicyStage) -> None:
    proposal = await propose(four_eyes)
    response = await four_eyes.call("POST", f"/policies/proposals/{proposal}:approve", "plato")
    assert (response.status_code, response.json()["state"], response.json()["version"]) == (200, "approved", 2)
    version = (await four_eyes.call("GET", "/policies/versions/2")).json()
    assert (version["author"]["subject"], version["approver"]["subject"]) == ("petra", "plato")
    assert four_eyes.events[-1].approver == "plato"


async def test_nobody_approves_their_own_change(four_eyes: PolicyStage) -> None:
    proposal = await propose(four_eyes, "plato")
    response = await four_eyes.call("POST", f"/policies/proposals/{proposal}:approve", "plato")
    assert error(response) == (403, "second_person_required")


async def test_approving_needs_its_own_right(four_eyes: PolicyStage) -> None:
    proposal = await propose(four_eyes)
    response = await four_eyes.call("POST", f"/policies/proposals/{proposal}:approve", "pablo")
    assert error(response) == (403, "not_permitted")


async def test_a_proposal_on_an_old_version_answers_412(four_eyes: PolicyStage) -> None:
    first, second = await propose(four_eyes), await propose(four_eyes)
    await four_eyes.call("POST", f"/policies/proposals/{first}:approve", "plato")
    response = await four_eyes.call("POST", f"/policies/proposals/{second}:approve", "plato")
    assert error(response) == (412, "etag_mismatch")


async def test_a_rejected_proposal_cannot_be_approved_any_more(four_eyes: PolicyStage) -> None:
    proposal = await propose(four_eyes)
    rejected = await four_eyes.call("POST", f"/policies/proposals/{proposal}:reject", "plato")
    assert rejected.json()["state"] == "rejected"
    response = await four_eyes.call("POST", f"/policies/proposals/{proposal}:approve", "plato")
    assert error(response) == (409, "already_decided")


async def test_a_proposal_shows_what_it_would_change(four_eyes: PolicyStage) -> None:
    proposal = await propose(four_eyes)
    shown = (await four_eyes.call("GET", f"/policies/proposals/{proposal}")).json()
    assert [change["path"] for change in shown["changes"]] == ["rules.employee-small"]


async def test_with_four_eyes_somebody_must_stay_able_to_approve(four_eyes: PolicyStage) -> None:
    response = await four_eyes.put(TEXT.replace("      - policy.approve\n", ""), token="plato")
    assert error(response) == (409, "would_lock_out")


# --------------------------------------------------------------------------------------- role bindings

BINDING = {"id": "eva-analyst", "roles": ["analyst"], "principals": ["https://idp.test#eva"]}


async def bind(stage: PolicyStage, method: str, path: str, body: Any = None, token: str = "petra") -> httpx2.Response:
    return await stage.call(method, path, token, json=body, headers={"if-match": await stage.etag()})


async def test_a_binding_is_created_as_a_new_policy_version(stage: PolicyStage) -> None:
    response = await bind(stage, "POST", "/role-bindings", BINDING)
    assert (response.status_code, response.json()["version"]["origin"]) == (200, "binding")
    listed = (await stage.call("GET", "/role-bindings")).json()
    assert [(item["id"], item["roles"]) for item in listed["data"]] == [("eva-analyst", ["analyst"])]
    assert listed["etag"] == await stage.etag()


async def test_a_binding_leaves_the_rest_of_the_text_alone(stage: PolicyStage) -> None:
    await bind(stage, "POST", "/role-bindings", BINDING)
    await bind(stage, "POST", "/role-bindings", BINDING | {"id": "second"})
    await bind(stage, "DELETE", "/role-bindings/second")
    await bind(stage, "DELETE", "/role-bindings/eva-analyst")
    response = await stage.call("GET", "/policies/current", headers={"accept": "application/yaml"})
    assert response.text.rstrip() == TEXT.rstrip()


async def test_a_binding_is_replaced(stage: PolicyStage) -> None:
    await bind(stage, "POST", "/role-bindings", BINDING)
    body = {"roles": ["employee"], "principals": ["https://idp.test#eva"], "expires": "2027-01-01T00:00:00Z"}
    assert (await bind(stage, "PUT", "/role-bindings/eva-analyst", body)).status_code == 200
    [item] = (await stage.call("GET", "/role-bindings")).json()["data"]
    assert (item["roles"], item["expires"]) == (["employee"], "2027-01-01T00:00:00Z")


WRONG_BINDINGS: list[tuple[str, str, Any, tuple[int, str]]] = [
    ("POST", "/role-bindings", BINDING | {"is_admin": True}, (422, "unknown_field")),
    (
        "POST",
        "/role-bindings",
        BINDING | {"roles": ["policy-admin", "platform-admin"]},
        (403, "cannot_grant_beyond_own_rights"),
    ),
    (
        "POST",
        "/role-bindings",
        BINDING | {"principals": ["https://idp.test#petra"]},
        (403, "cannot_grant_beyond_own_rights"),
    ),
    ("POST", "/role-bindings", BINDING | {"roles": ["analist"]}, (422, "invalid_policy")),
    ("POST", "/role-bindings", BINDING | {"principals": ["eva"]}, (422, "invalid_policy")),
    ("POST", "/role-bindings", BINDING | {"break_glass": True}, (422, "invalid_policy")),
    ("POST", "/role-bindings", {"id": "x"}, (422, "missing_required_parameter")),
    ("DELETE", "/role-bindings/nobody", None, (404, "binding_not_found")),
]


async def test_a_wrong_binding_is_refused(stage: PolicyStage) -> None:
    answers = [error(await bind(stage, method, path, body)) for method, path, body, _ in WRONG_BINDINGS]
    assert answers == [expected for *_, expected in WRONG_BINDINGS]
    assert stage.service.version == 1


async def test_a_second_binding_of_one_name_answers_409(stage: PolicyStage) -> None:
    await bind(stage, "POST", "/role-bindings", BINDING)
    assert error(await bind(stage, "POST", "/role-bindings", BINDING)) == (409, "already_exists")


async def test_a_binding_needs_if_match(stage: PolicyStage) -> None:
    assert error(await stage.call("POST", "/role-bindings", json=BINDING)) == (428, "if_match_required")


async def test_a_repeated_key_in_a_binding_is_refused(stage: PolicyStage) -> None:
    response = await stage.call(
        "POST",
        "/role-bindings",
        content='{"id": "a", "id": "b", "roles": ["analyst"], "principals": ["i#s"]}',
        headers={"if-match": await stage.etag(), "content-type": "application/json"},
    )
    assert error(response) == (400, "duplicate_key")


# --------------------------------------------------------------------------------------------- dry runs


async def post(stage: PolicyStage, path: str, text: str, token: str = "petra", **params: Any) -> httpx2.Response:
    return await stage.call(
        "POST", path, token, content=text.encode(), headers={"content-type": "application/yaml"}, params=params
    )


async def test_validating_lists_every_error_with_its_place(stage: PolicyStage) -> None:
    text = TEXT.replace("roles: [employee]", "roles: [employe]").replace("roles: [auditor]}\n", "roles: [auditr]}\n")
    found = (await post(stage, "/policies:validate", text)).json()
    assert found["valid"] is False
    lines = text.splitlines()
    assert [(lines[item["line"] - 1].strip(), item["hint"]) for item in found["errors"][:2]] == [
        ("subjects: {roles: [employe]}", "did you mean `employee`?"),
        ("subjects: {roles: [auditr]}", "did you mean `auditor`?"),
    ]


async def test_validating_shows_warnings_changes_and_what_would_be_refused(stage: PolicyStage) -> None:
    text = TEXT.replace("small: [smollm2-135m-instruct]", "small: [smollm2-135m-instruct, gone-7b]").replace(
        "actions: [policy.read, policy.write]", "actions: [policy.read, policy.write, audit.read]"
    )
    found = (await post(stage, "/policies:validate", text)).json()
    assert found["valid"] is True
    assert [item["kind"] for item in found["warnings"]] == ["dead_pattern"]
    assert [item["path"] for item in found["changes"]] == ["modelGroups.small", "rules.policy-admin-changes-policy"]
    assert found["objection"]["code"] == "cannot_grant_beyond_own_rights"
    assert stage.service.version == 1


def past(number: int, name: str, model: str, effect: Effect, rule: str | None = None) -> PastDecision:
    return PastDecision(
        request_id=UUID(int=number),
        at=datetime(2026, 11, 30, 9, 0, tzinfo=UTC) + timedelta(minutes=number),
        principal=CALLERS[name],
        action="chat",
        model=model,
        effect=effect,
        rule_id=rule,
        policy_version=1,
    )


PAST = [
    past(1, "elena", "smollm2-135m-instruct", Effect.ALLOW, "employee-small"),
    past(2, "elena", LARGE, Effect.DENY),
    past(3, "anita", LARGE, Effect.ALLOW, "analyst-all"),
    past(4, "anita", "retired-model", Effect.ALLOW),
    past(5, "elena", "auto", Effect.DENY),
]


async def test_simulating_lists_the_decisions_that_would_flip(database_url: str) -> None:
    text = TEXT.replace("groups: [small, large, routed,", "groups: [small, routed,").replace(
        "  - name: an analyst uses the large model\n    given: {roles: [analyst], action: chat, "
        f"model: {LARGE}}}\n    expect: allow\n    rule: analyst-all\n",
        "",
    )
    async with policy_stage(database_url, past=PAST) as stage:
        found = (await post(stage, "/policies:simulate", text, "plato")).json()
    assert (found["replayed"], found["skipped"], found["allow_to_deny"], found["deny_to_allow"]) == (4, 1, 1, 1)
    assert [(flip["subject"], flip["before"], flip["after"], flip["known_cause"]) for flip in found["flips"]] == [
        ("anita", "allow", "deny", True),
        ("elena", "deny", "allow", False),
    ]


async def test_simulating_the_policy_in_force_flips_nothing_that_it_decided(database_url: str) -> None:
    async with policy_stage(database_url, past=PAST[:3]) as stage:
        found = (await post(stage, "/policies:simulate", TEXT, limit=2)).json()
    assert (found["replayed"], found["flips"]) == (2, [])


# ------------------------------------------------------------------------------------------ explanations


async def explain(stage: PolicyStage, **body: Any) -> Any:
    return (await stage.call("POST", "/authz:explain", json=body)).json()


async def test_an_explanation_shows_roles_rules_obligations_and_limits(stage: PolicyStage) -> None:
    found = await explain(
        stage,
        principal={"roles": ["analyst", "nonsense"], "department": "risk", "tenant": "acme"},
        action="chat",
        model=LARGE,
    )
    assert (found["decision"], found["rule_id"], found["policy_version"]) == ("allow", "analyst-all", 1)
    assert found["roles"] == [{"role": "analyst", "origin": "token"}]
    assert found["undeclared_roles"] == ["nonsense"]
    assert found["obligations"]["max_output_tokens"] == 4096
    assert {limit["scope_key"] for limit in found["limits"]} == {
        "user:acme/https://idp.example/somebody",
        "department:acme/risk",
    }
    parts = {rule["id"]: (rule["part"], rule["why"]) for rule in found["rules"]}
    assert parts["analyst-all"] == ("decides", "")
    assert parts["employee-small"] == ("unmatched", "subjects, models")


async def test_an_explanation_agrees_with_enforcement_for_everybody(stage: PolicyStage) -> None:
    from tests.fakes.exchanges import context

    for principal in CALLERS.values():
        for card in stage.service.catalog:
            enforced = stage.service.decide(principal, "chat", card, context())
            found = await explain(
                stage,
                principal={"roles": sorted(principal.roles), "issuer": principal.issuer, "subject": principal.subject},
                action="chat",
                model=card.id,
            )
            assert (found["decision"], found["rule_id"]) == (enforced.effect.value, enforced.rule_id)


async def test_an_older_version_can_be_explained(stage: PolicyStage) -> None:
    await stage.put(TEXT.replace("maxOutputTokens: 4096", "maxOutputTokens: 16"))
    body = {"principal": {"roles": ["analyst"]}, "action": "chat", "model": LARGE}
    assert (await explain(stage, **body))["obligations"]["max_output_tokens"] == 16
    assert (await explain(stage, **body, version=1))["obligations"]["max_output_tokens"] == 4096


async def test_a_question_that_cannot_be_answered(stage: PolicyStage) -> None:
    cases: list[tuple[dict[str, Any], tuple[int, str]]] = [
        ({"principal": {"roles": []}, "action": "chat", "model": "gone"}, (404, "model_not_found")),
        ({"action": "chat"}, (400, "invalid_value")),
        ({"principal": {"is_admin": True}, "action": "chat"}, (422, "unknown_field")),
        ({"principal": {}, "action": "chat", "version": 99}, (404, "version_not_found")),
    ]
    answers = [error(await stage.call("POST", "/authz:explain", json=body)) for body, _ in cases]
    assert answers == [expected for _, expected in cases]
