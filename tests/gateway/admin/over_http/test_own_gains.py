"""A lone administrator gives themselves nothing, by no account of theirs, on a whole gateway; and what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from gateway.cli import serve
from tests.fakes.stage import Stage

POLICY = """
apiVersion: esclusa/v1
kind: PolicySet
metadata: {name: gains}
roles: {boss: {}, works: {}, bot: {}, closes: {}}
rules:
  - id: boss
    effect: allow
    subjects: {roles: [boss]}
    actions: [policy.read, policy.write, identity.read, identity.write]
  - {id: works, effect: allow, subjects: {roles: [works]}, actions: [chat], models: {ids: [mini]}}
  - {id: closes, effect: allow, subjects: {roles: [closes]}, actions: [chat], models: {ids: [mini]},
     when: {purpose: {in: [closing]}}}
limits:
  - {id: dept, scope: {department: finance}, window: month, cost_eur: 5}
  - {id: each, scope: {each: user}, window: minute, requests: 60}
"""
ADMIN = "/admin/v1"
MACHINES = "urn:esclusa:service-accounts"


@pytest.fixture(scope="module")
def stage_overrides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path: Path = tmp_path_factory.mktemp("gains") / "policy.yaml"
    path.write_text(POLICY)
    return {"access": {"policy_file": path}, "identity": {"api_key_pepper": SecretStr("p" * 40)}}


def boss(stage: Stage, method: str, path: str, sub: str = "b-1", **sent: Any) -> httpx2.Response:
    headers = {**stage.headers("boss", sub=sub, department=None), **sent.pop("headers", {})}
    return httpx2.request(method, f"{stage.url}{ADMIN}{path}", headers=headers, timeout=30, **sent)


def put(stage: Stage, text: str, sub: str = "b-1") -> httpx2.Response:
    etag = boss(stage, "GET", "/policies/current").headers["etag"]
    sent = {"content-type": "application/yaml", "if-match": etag}
    return boss(stage, "PUT", "/policies/current", sub, content=text.encode(), headers=sent)


@pytest.fixture(scope="module")
def account(stage: Stage) -> str:
    answer = boss(stage, "POST", "/service-accounts", json={"name": "mine", "roles": []})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def refusal(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_a_rule_for_an_account_of_ones_own_is_refused_and_for_anothers_is_not(stage: Stage, account: str) -> None:
    rule = (
        f'  - {{id: x, effect: allow, subjects: {{principals: ["{MACHINES}#{account}"]}}, actions: [chat],'
        " models: {ids: [mini]}}\nlimits:\n"
    )
    text = POLICY.replace("limits:\n", rule)
    answer = put(stage, text)
    assert refusal(answer) == (403, "cannot_grant_beyond_own_rights")
    assert "your service account `mine`" in answer.json()["error"]["message"]
    validated = boss(
        stage, "POST", "/policies:validate", content=text.encode(), headers={"content-type": "application/yaml"}
    )
    assert validated.json()["objection"]["code"] == "cannot_grant_beyond_own_rights"
    assert put(stage, text, sub="b-2").status_code == 200
    assert put(stage, POLICY, sub="b-2").status_code == 200


def test_a_role_bound_to_an_account_of_ones_own_is_refused(stage: Stage, account: str) -> None:
    body = {"id": "b", "roles": ["works"], "principals": [f"{MACHINES}#{account}"]}
    etag = boss(stage, "GET", "/policies/current").headers["etag"]
    assert refusal(boss(stage, "POST", "/role-bindings", json=body, headers={"if-match": etag})) == (
        403,
        "cannot_grant_beyond_own_rights",
    )


@pytest.mark.parametrize(
    ("old", "new", "gained"),
    [
        ("[chat], models: {ids: [mini]}}\n  - {id: closes", "[chat], models: {any: true}}\n  - {id: closes", "`maxi`"),
        ("requests: 60", "requests: 6000", "`limits.each`"),
        ("  - {id: each, scope: {each: user}, window: minute, requests: 60}\n", "", "`limits.each`"),
    ],
    ids=["a model", "more requests", "no limit"],
)
def test_a_narrower_token_does_not_hide_what_its_holder_was_seen_with(
    stage: Stage, old: str, new: str, gained: str, request: pytest.FixtureRequest
) -> None:
    text = POLICY.replace(old, new)
    assert text != POLICY
    sub = f"b-{request.node.callspec.id}"
    wide = stage.headers("boss", "works", sub=sub, department=None)
    body = {"model": "mini", "messages": [{"role": "user", "content": "hola"}], "max_tokens": 2}
    assert httpx2.post(f"{stage.url}/v1/chat/completions", json=body, headers=wide, timeout=30).status_code == 200
    answer = put(stage, text, sub=sub)
    assert refusal(answer) == (403, "cannot_grant_beyond_own_rights")
    assert gained in answer.json()["error"]["message"]
    assert put(stage, text, sub="b-2").status_code == 200
    assert put(stage, POLICY, sub="b-2").status_code == 200


def test_a_purpose_that_is_missing_is_asked_for(stage: Stage) -> None:
    body = {"model": "mini", "messages": [{"role": "user", "content": "hola"}]}
    url, headers = f"{stage.url}/v1/chat/completions", stage.headers("closes", sub="u-closes")
    refused = httpx2.post(url, json=body, headers=headers, timeout=30).json()["error"]
    assert "purpose is not stated" in refused["message"]
    assert "x-esclusa-purpose" in str(refused["hint"])
    stated = httpx2.post(url, json=body, headers={**headers, "x-esclusa-purpose": "closing"}, timeout=30)
    assert stated.status_code == 200, stated.text


def test_the_ready_panel_says_what_the_policy_does_not_do(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    serve._panel(stage.gateway.services, stage.url, 1.0, [])
    told = capsys.readouterr().out
    assert "Warning: `dept` counts money, and some of what it covers has no price" in told
    assert "Warning: nothing says that there is a department `finance`" in told
