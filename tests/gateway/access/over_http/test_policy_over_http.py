"""The policy of a whole running gateway: a change decides the next request, leaves its record, and can be replayed."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from tests.fakes.stage import POLICY, Stage

TEXT = POLICY.read_text(encoding="utf-8")


def ask(stage: Stage, model: str, *roles: str, sub: str = "u-1", **more: Any) -> httpx2.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "hola"}], **more}
    return httpx2.post(stage.url + "/v1/chat/completions", json=body, headers=stage.headers(*roles, sub=sub))


def admin(stage: Stage, method: str, path: str, **options: Any) -> httpx2.Response:
    roles = options.pop("roles", ("policy-admin",))
    headers = stage.headers(*roles, sub="u-petra") | options.pop("headers", {})
    return httpx2.request(method, f"{stage.url}/admin/v1{path}", headers=headers, **options)


def put(stage: Stage, text: str) -> httpx2.Response:
    etag = admin(stage, "GET", "/policies/current").headers["etag"]
    headers = {"if-match": etag, "content-type": "application/yaml", "x-change-reason": "test"}
    return admin(stage, "PUT", "/policies/current", content=text.encode(), headers=headers)


@pytest.fixture(autouse=True)
def _same_policy_afterwards(stage: Stage) -> Any:
    yield
    if stage.gateway.services.authorizer.version != 1:
        assert put(stage, TEXT).status_code == 200


def test_a_change_decides_the_very_next_request(stage: Stage) -> None:
    assert ask(stage, "maxi", "employee").status_code == 403
    assert put(stage, TEXT.replace("small: [mini, tiny]", "small: [mini, tiny, maxi]")).status_code == 200
    answer = ask(stage, "maxi", "employee")
    assert answer.status_code == 200
    assert answer.headers["x-esclusa-policy-version"] == str(stage.gateway.services.authorizer.version)


def test_a_change_is_in_the_audit_trail_with_its_author_and_etags(stage: Stage) -> None:
    answer = put(stage, TEXT.replace("small: [mini, tiny]", "small: [mini]"))
    [row] = [row for row in stage.records(answer.headers["x-request-id"], expect=1) if row["phase"] == "admin"]
    record = json.loads(row["rec"])
    assert (row["subject"], row["action"], row["decision"]) == ("u-petra", "policy.write", "allow")
    assert answer.headers["etag"] in json.dumps(record).replace('\\"', '"')
    assert "modelGroups.small" in str(row["personal"])  # beside the hashed record, which commits to it


def test_a_refused_change_is_in_the_audit_trail_too(stage: Stage) -> None:
    answer = put(stage, TEXT.replace("actions: [policy.read, policy.write]", "actions: [policy.read, audit.read]"))
    assert answer.status_code == 403
    rows = stage.records(answer.headers["x-request-id"], expect=1)
    assert [(row["phase"], row["error_code"]) for row in rows] == [("admin", "cannot_grant_beyond_own_rights")]


def test_auto_is_no_way_round_the_policy(stage: Stage) -> None:
    hard = "Prove that there are infinitely many primes, then write a Python program with tests. " * 4
    answer = ask(stage, "auto", "employee", messages=[{"role": "user", "content": hard}])
    assert (answer.status_code, answer.headers["x-esclusa-model"]) == (200, "mini")
    assert (
        ask(stage, "auto", "analyst", messages=[{"role": "user", "content": hard}]).headers["x-esclusa-model"] == "maxi"
    )


def test_a_hidden_model_looks_like_one_that_does_not_exist(stage: Stage) -> None:
    put(stage, TEXT.replace("\nroles:\n", "\nsettings: {hideModels: true}\n\nroles:\n", 1))
    refused, unknown = ask(stage, "maxi", "employee"), ask(stage, "no-such-model", "employee")
    assert (refused.status_code, unknown.status_code) == (404, 404)
    hidden, missing = refused.json()["error"], unknown.json()["error"]
    for error in (hidden, missing):
        error.pop("request_id")
    assert hidden == missing


def test_the_list_of_models_is_what_a_call_may_use(stage: Stage) -> None:
    for role in ("employee", "analyst", "auditor", "policy-admin"):
        listed = httpx2.get(stage.url + "/v1/models", headers=stage.headers(role)).json()["data"]
        for model in ("mini", "maxi", "auto"):
            usable = ask(stage, model, role).status_code == 200
            assert (model in [item["id"] for item in listed]) is usable, (role, model)


def test_recorded_decisions_are_replayed_against_a_proposal(stage: Stage) -> None:
    for _ in range(2):
        assert ask(stage, "maxi", "analyst", sub="u-ana").status_code == 200
    assert ask(stage, "maxi", "employee", sub="u-eva").status_code == 403
    stage.records_of("u-eva")
    candidate = TEXT.replace("all: [mini, maxi, embed, tiny, long]", "all: [mini, embed, tiny, long]").replace(
        "small: [mini, tiny]", "small: [mini, tiny, maxi]"
    )
    asked: dict[str, Any] = {"content": candidate.encode(), "headers": {"content-type": "application/yaml"}}
    answer = admin(stage, "POST", "/policies:simulate", roles=("policy-admin", "auditor"), **asked)
    flips = {(flip["subject"], flip["model"], flip["before"], flip["after"]) for flip in answer.json()["flips"]}
    assert ("u-ana", "maxi", "allow", "deny") in flips
    assert ("u-eva", "maxi", "deny", "allow") in flips
    nameless = admin(stage, "POST", "/policies:simulate", **asked).json()
    assert nameless["flips"] == []
    assert nameless["flips_left_out"] == len(answer.json()["flips"])


def test_an_explanation_says_what_the_gateway_then_does(stage: Stage) -> None:
    for role, model in (("employee", "mini"), ("employee", "maxi"), ("analyst", "maxi"), ("auditor", "mini")):
        body = {
            "claims": {"iss": stage.issuer.issuer, "sub": "u-1", "roles": [role], "tenant": "acme"},
            "action": "chat",
            "model": model,
        }
        explained = admin(stage, "POST", "/authz:explain", json=body)
        assert explained.status_code == 200, explained.text
        assert (explained.json()["decision"] == "allow") is (ask(stage, model, role).status_code == 200)
