"""The policy over REST: reading, replacing, versions, preconditions, idempotency, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from gateway.api.openapi import describe
from tests.fakes.policy_stage import SEED, PolicyStage, policy_stage

TEXT = SEED.read_text(encoding="utf-8")
SMALLER = TEXT.replace("maxOutputTokens: 2048", "maxOutputTokens: 1024")


@pytest.fixture
async def stage(database_url: str) -> AsyncIterator[PolicyStage]:
    async with policy_stage(database_url) as stage:
        yield stage


def code(response: object) -> str:
    return str(response.json()["error"]["code"])  # type: ignore[attr-defined]


async def test_the_current_policy_has_an_etag_and_server_set_metadata(stage: PolicyStage) -> None:
    response = await stage.call("GET", "/policies/current")
    assert response.status_code == 200
    assert response.headers["etag"].startswith('"v1-')
    assert response.json()["metadata"] | {"createdAt": ""} == {
        "name": "default",
        "description": "Three demo models, least privilege, redaction, limits per user and per department.",
        "version": 1,
        "etag": response.headers["etag"],
        "author": "installation",
        "createdAt": "",
    }


async def test_as_yaml_it_comes_back_exactly_as_written(stage: PolicyStage) -> None:
    response = await stage.call("GET", "/policies/current", headers={"accept": "application/yaml"})
    assert response.text == TEXT
    assert response.headers["content-type"].startswith("application/yaml")


async def test_an_unchanged_policy_is_not_sent_again(stage: PolicyStage) -> None:
    etag = await stage.etag()
    response = await stage.call("GET", "/policies/current", headers={"if-none-match": etag})
    assert (response.status_code, response.content) == (304, b"")


async def test_replacing_in_yaml_makes_the_next_version(stage: PolicyStage) -> None:
    response = await stage.put(SMALLER, x_change_reason="tighter")
    assert response.status_code == 200
    version = response.json()["version"]
    assert (version["version"], version["reason"], version["author"]["subject"]) == (2, "tighter", "petra")
    assert response.headers["etag"] == version["etag"] == await stage.etag()
    assert stage.service.version == 2


async def test_what_was_read_as_json_can_be_written_back(stage: PolicyStage) -> None:
    read = await stage.call("GET", "/policies/current")
    document = read.json()
    document["limits"][0]["requests"] = 10
    response = await stage.call("PUT", "/policies/current", headers={"if-match": read.headers["etag"]}, json=document)
    assert response.status_code == 200
    assert stage.service.snapshot.document.limits[0].requests == 10


async def test_the_change_is_recorded_with_before_and_after(stage: PolicyStage) -> None:
    before = await stage.etag()
    response = await stage.put(SMALLER, x_change_reason="tighter", changed_by="ticket 42")
    event = stage.events[-1]
    assert (event.kind, event.action, event.target) == ("admin", "policy.write", "policies/current")
    assert (event.before_etag, event.after_etag, event.reason) == (before, response.headers["etag"], "tighter")
    assert event.diff is not None
    assert event.diff["changed_by"] == "ticket 42"
    assert [change["path"] for change in event.diff["changes"]] == ["rules.employee-small"]
    assert event.diff["changes"][0]["before"]["obligations"]["maxOutputTokens"] == 2048


async def test_without_if_match_it_answers_428(stage: PolicyStage) -> None:
    response = await stage.call(
        "PUT", "/policies/current", content=SMALLER, headers={"content-type": "application/yaml"}
    )
    assert (response.status_code, code(response)) == (428, "if_match_required")
    assert stage.events[-1].error_code == "if_match_required"


async def test_a_wildcard_if_match_is_no_precondition(stage: PolicyStage) -> None:
    assert (await stage.put(SMALLER, etag="*")).status_code == 428


async def test_a_stale_etag_answers_412_with_the_current_one_and_who_wrote_it(stage: PolicyStage) -> None:
    first = await stage.etag()
    await stage.put(SMALLER, token="pablo", etag=first)
    response = await stage.put(TEXT, etag=first)
    assert (response.status_code, code(response)) == (412, "etag_mismatch")
    assert response.headers["etag"] == await stage.etag()
    assert "`pablo`" in response.json()["error"]["message"]


async def test_of_a_thousand_concurrent_puts_on_two_replicas_exactly_one_wins(
    stage: PolicyStage, database_url: str
) -> None:
    etag = await stage.etag()
    texts = [TEXT.replace("maxOutputTokens: 2048", f"maxOutputTokens: {n}") for n in range(1, 1001)]
    async with policy_stage(database_url) as other:
        replicas = (stage, other)
        answers = await asyncio.gather(*(replicas[n % 2].put(text, etag=etag) for n, text in enumerate(texts)))
    assert Counter(answer.status_code for answer in answers) == {200: 1, 412: 999}
    assert stage.service.version == 2


async def test_an_unknown_field_is_refused_and_named(stage: PolicyStage) -> None:
    for field in ("is_admin: true", "role: admin", "allowed_routes: ['*']"):
        response = await stage.put(TEXT.replace("settings:", f"{field}\nsettings:"))
        assert (response.status_code, code(response)) == (422, "unknown_field")
        assert response.json()["error"]["param"] == field.partition(":")[0]


async def test_a_broken_document_answers_422_with_the_place_and_the_nearest_name(stage: PolicyStage) -> None:
    response = await stage.put(TEXT.replace("subjects: {roles: [employee]}", "subjects: {roles: [employe]}"))
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (422, "invalid_policy")
    line = TEXT[: TEXT.index("roles: [employee]")].count("\n") + 1
    assert error["message"].startswith(f"line {line}, column 24: role `employe`")
    assert error["hint"] == "did you mean `employee`?"


async def test_a_failing_embedded_test_refuses_the_version(stage: PolicyStage) -> None:
    response = await stage.put(
        TEXT.replace("models: {groups: [small, routed, embedding, guardrails]}", "models: {groups: [routed]}")
    )
    assert (response.status_code, code(response)) == (422, "policy_test_failed")
    assert stage.service.version == 1


async def test_a_body_over_one_mebibyte_answers_413(stage: PolicyStage) -> None:
    response = await stage.put(TEXT + "# " + "x" * 1024 * 1024)
    assert (response.status_code, code(response)) == (413, "request_too_large")


async def test_more_than_five_thousand_rules_answer_422(stage: PolicyStage) -> None:
    rule = {"id": "r", "effect": "deny", "subjects": {"any": True}}
    document = (await stage.call("GET", "/policies/current")).json()
    document["rules"] = [rule | {"id": f"r{n}"} for n in range(5001)]
    response = await stage.call("PUT", "/policies/current", headers={"if-match": await stage.etag()}, json=document)
    assert (response.status_code, response.json()["error"]["param"]) == (422, "rules")


async def test_another_media_type_answers_415(stage: PolicyStage) -> None:
    response = await stage.put(SMALLER, content_type="text/plain")
    assert response.status_code == 415


async def test_a_repeated_key_in_json_is_refused(stage: PolicyStage) -> None:
    body = json.dumps((await stage.call("GET", "/policies/current")).json())
    response = await stage.call(
        "PUT",
        "/policies/current",
        content=body[:-1] + ', "rules": []}',
        headers={"if-match": await stage.etag(), "content-type": "application/json"},
    )
    assert response.status_code == 422
    assert "duplicate key `rules`" in response.json()["error"]["message"]


async def test_the_same_idempotency_key_answers_as_before_and_writes_once(stage: PolicyStage) -> None:
    etag = await stage.etag()
    first = await stage.put(SMALLER, etag=etag, idempotency_key="k-1")
    second = await stage.put(SMALLER, etag=etag, idempotency_key="k-1")
    assert second.json()["version"] == first.json()["version"]
    assert (second.status_code, second.json()["replayed"]) == (200, True)
    assert stage.service.version == 2


async def test_an_idempotency_key_for_another_request_answers_409(stage: PolicyStage) -> None:
    etag = await stage.etag()
    await stage.put(SMALLER, etag=etag, idempotency_key="k-1")
    response = await stage.put(TEXT, etag=etag, idempotency_key="k-1")
    assert (response.status_code, code(response)) == (409, "idempotency_key_reused")


async def test_an_idempotency_key_belongs_to_its_caller(stage: PolicyStage) -> None:
    await stage.put(SMALLER, idempotency_key="k-1")
    response = await stage.put(TEXT, token="pablo", idempotency_key="k-1")
    assert response.json()["version"]["version"] == 3


async def test_versions_are_paged_newest_first(stage: PolicyStage) -> None:
    for tokens in (1001, 1002, 1003, 1004):
        await stage.put(TEXT.replace("maxOutputTokens: 2048", f"maxOutputTokens: {tokens}"))
    first = (await stage.call("GET", "/policies/versions", params={"limit": 3})).json()
    rest = (await stage.call("GET", "/policies/versions", params={"limit": 3, "cursor": first["next_cursor"]})).json()
    assert [item["version"] for item in first["data"] + rest["data"]] == [5, 4, 3, 2, 1]
    assert (first["has_more"], rest["has_more"], rest["next_cursor"], first["total"]) == (True, False, None, 5)


async def test_a_header_that_cannot_be_recorded_is_refused_before_anything_is_written(stage: PolicyStage) -> None:
    response = await stage.put(SMALLER, changed_by="x" * 257)
    assert (response.status_code, code(response)) == (400, "invalid_header")
    assert (stage.service.version, stage.events[-1].kind, stage.events[-1].allowed) == (1, "admin", False)


async def test_a_cursor_that_was_not_issued_answers_400(stage: PolicyStage) -> None:
    for cursor in ("zzz", "djF4", "MTI", "🙂"):
        response = await stage.call("GET", "/policies/versions", params={"cursor": cursor})
        assert (response.status_code, code(response)) == (400, "invalid_cursor")


async def test_one_version_shows_its_text(stage: PolicyStage) -> None:
    response = await stage.call("GET", "/policies/versions/1")
    assert response.json()["source"] == TEXT
    assert response.json()["origin"] == "seed"


async def test_a_version_that_does_not_exist_answers_404(stage: PolicyStage) -> None:
    assert (await stage.call("GET", "/policies/versions/99")).status_code == 404


async def test_the_difference_of_two_versions_is_by_rule_and_by_text(stage: PolicyStage) -> None:
    await stage.put(SMALLER)
    diff = (await stage.call("GET", "/policies/versions/1/diff/2")).json()
    assert [(change["path"], change["kind"]) for change in diff["changes"]] == [("rules.employee-small", "changed")]
    assert "-    obligations: {maxOutputTokens: 2048, " in diff["text"]


async def test_restoring_makes_an_old_version_the_newest(stage: PolicyStage) -> None:
    await stage.put(SMALLER)
    response = await stage.call("POST", "/policies/versions/1:restore", headers={"if-match": await stage.etag()})
    version = response.json()["version"]
    assert (version["version"], version["origin"], version["restored_from"]) == (3, "restore", 1)
    assert stage.service.snapshot.document.rules[0].obligations is not None
    assert stage.service.snapshot.document.rules[0].obligations.max_output_tokens == 2048


async def test_restoring_needs_if_match_too(stage: PolicyStage) -> None:
    assert (await stage.call("POST", "/policies/versions/1:restore")).status_code == 428


READS = [
    ("GET", "/policies/current"),
    ("GET", "/policies/versions"),
    ("GET", "/policies/versions/1"),
    ("GET", "/policies/versions/1/diff/1"),
    ("POST", "/policies:validate"),
    ("POST", "/policies:simulate"),
    ("POST", "/authz:explain"),
    ("GET", "/policies/proposals"),
    ("GET", "/role-bindings"),
]
WRITES = [
    ("PUT", "/policies/current"),
    ("POST", "/policies/versions/1:restore"),
    ("POST", "/role-bindings"),
    ("PUT", "/role-bindings/x"),
    ("DELETE", "/role-bindings/x"),
]


@pytest.mark.parametrize("token", ["anita", "elena", "aldo", "oscar", "celia"])
async def test_only_policy_administrators_reach_policy_routes(stage: PolicyStage, token: str) -> None:
    answers = [await stage.call(method, path, token) for method, path in READS + WRITES]
    assert {(answer.status_code, code(answer)) for answer in answers} == {(403, "not_permitted")}
    assert [event.allowed for event in stage.events] == [False] * len(answers)


async def test_without_a_token_every_route_answers_401(stage: PolicyStage) -> None:
    routes = [*READS, *WRITES, ("GET", "/models")]
    answers = [await stage.client.request(method, f"/admin/v1{path}") for method, path in routes]
    assert {(answer.status_code, code(answer)) for answer in answers} == {(401, "missing_token")}


async def test_the_catalog_shows_tiers_and_who_grants_each_model(stage: PolicyStage) -> None:
    response = await stage.call("GET", "/models", "oscar")
    models = {model["id"]: model for model in response.json()["data"]}
    assert models["smollm2-135m-instruct"]["granted_by"] == ["analyst-all", "employee-small"]
    assert models["qwen2.5-coder-0.5b-instruct"]["granted_by"] == ["analyst-all"]
    assert models["auto"]["virtual"] is True


async def test_the_catalog_needs_its_own_permission(stage: PolicyStage) -> None:
    assert (await stage.call("GET", "/models", "petra")).status_code == 403


async def test_the_description_of_every_route_has_its_errors_headers_and_bodies(stage: PolicyStage) -> None:
    paths = describe(stage.routes)["paths"]
    put = paths["/admin/v1/policies/current"]["put"]
    assert set(put["requestBody"]["content"]) == {"application/yaml", "application/json"}
    assert [parameter["name"] for parameter in put["parameters"] if parameter.get("required")] == ["If-Match"]
    assert {"200", "202", "403", "409", "412", "422", "428", "default"} <= set(put["responses"])
    for path in paths.values():
        for operation in path.values():
            assert operation["summary"]
            schema = operation["responses"]["default"]["content"]["application/json"]["schema"]
            assert schema["$ref"] in ("#/components/schemas/Error", "#/components/schemas/AnthropicError")
