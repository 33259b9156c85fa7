"""A tenant's administrators see nothing of another tenant, on any admin route; `tenants.all` is what opens it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from tests.fakes.stage import Stage

ADMINISTERS = (
    "audit.read, policy.read, policy.write, identity.read, identity.write, limits.read, limits.write, models.read, "
    "engine.operate, content.read"
)
POLICY = f"""
apiVersion: esclusa/v1
kind: PolicySet
metadata: {{name: tenants}}
roles: {{works: {{}}, boss: {{}}, reads-policy: {{}}, watches: {{}}}}
rules:
  - {{id: works, effect: allow, subjects: {{roles: [works]}}, actions: [chat], models: {{ids: [mini]}}}}
  - {{id: boss, effect: allow, subjects: {{roles: [boss]}}, actions: [{ADMINISTERS}]}}
  - {{id: reads, effect: allow, subjects: {{roles: [reads-policy]}}, actions: [policy.read]}}
  - {{id: all, effect: allow, subjects: {{roles: [watches]}}, actions: [tenants.all]}}
limits:
  - {{id: user-day, scope: {{each: user}}, window: day, requests: 1000}}
  - {{id: dept-day, scope: {{each: department}}, window: day, requests: 1000}}
"""
ADMIN = "/admin/v1"
SECRETS = ("acme", "zz-ana", "zz-boss", "zz-robot", "zz-leaver", "zz-dept")
"""Every name of the other tenant that is somewhere in the stores."""


@pytest.fixture(scope="module")
def stage_overrides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path: Path = tmp_path_factory.mktemp("tenants") / "policy.yaml"
    path.write_text(POLICY)
    return {"access": {"policy_file": path}, "identity": {"api_key_pepper": SecretStr("p" * 40)}}


def call(
    stage: Stage, method: str, path: str, *roles: str, tenant: str = "beta", sub: str = "b-boss", **sent: Any
) -> httpx2.Response:
    headers = {**stage.headers(*roles or ("boss",), sub=sub, tenant=tenant), **sent.pop("headers", {})}
    return httpx2.request(method, f"{stage.url}{path}", headers=headers, timeout=30, **sent)


@dataclass
class Acme:
    """What the other tenant has made, by the names of path parameters."""

    ids: dict[str, str] = field(default_factory=dict)
    request_id: str = ""


@pytest.fixture(scope="module")
def acme(stage: Stage) -> Acme:
    """A tenant with requests, a service account, a key, a revocation and a version of the policy."""

    def by_acme(method: str, path: str, *roles: str, sub: str = "zz-boss", **sent: Any) -> httpx2.Response:
        answer = call(stage, method, path, *roles, tenant="acme", sub=sub, **sent)
        assert answer.status_code < 300, answer.text
        return answer

    body = {"model": "mini", "messages": [{"role": "user", "content": "hola"}]}
    token = {"authorization": f"Bearer {stage.token('works', sub='zz-ana', tenant='acme', department='zz-dept')}"}
    asked = by_acme("POST", "/v1/chat/completions", json=body, headers=token)
    assert stage.records_of("zz-ana")
    account = by_acme("POST", f"{ADMIN}/service-accounts", json={"name": "zz-robot", "roles": []}).json()
    key = by_acme("POST", f"{ADMIN}/service-accounts/{account['id']}/keys", json={"name": "ci"}).json()
    gone = {"kind": "subject", "issuer": stage.issuer.issuer, "subject": "zz-leaver", "reason": "zz-leaver left"}
    revoked = by_acme("POST", f"{ADMIN}/revocations", json=gone).json()
    etag = by_acme("GET", f"{ADMIN}/policies/current").headers["etag"]
    written = by_acme(
        "PUT",
        f"{ADMIN}/policies/current",
        content=POLICY.replace("requests: 1000", "requests: 999", 1).encode(),
        headers={"if-match": etag, "content-type": "application/yaml"},
    ).json()
    events = by_acme("GET", f"{ADMIN}/audit/events").json()["data"]
    return Acme(
        {
            "account_id": account["id"],
            "key_id": key["id"],
            "revocation_id": revoked["id"],
            "number": str(written["version"]["version"]),
            "version": str(written["version"]["version"]),
            "other": "1",
            "event_id": events[0]["event_id"],
            "request_id": asked.headers["x-request-id"],
            "model_id": "mini",
            "model": "mini",
            "binding_id": "none",
            "proposal_id": account["id"],
        },
        asked.headers["x-request-id"],
    )


def admin_reads(stage: Stage) -> list[str]:
    paths = call(stage, "GET", "/openapi.json").json()["paths"]
    return sorted(path for path, verbs in paths.items() if path.startswith(ADMIN) and "get" in verbs)


def told(answer: httpx2.Response, *asked: str) -> list[str]:
    """Names of the other tenant in an answer, besides what the question itself said."""
    text = answer.text + json.dumps(dict(answer.headers))
    for name in asked:
        text = text.replace(name, "")
    return [name for name in SECRETS if name in text]


def test_no_read_of_the_admin_api_shows_another_tenant(stage: Stage, acme: Acme) -> None:
    seen = {}
    for path in admin_reads(stage):
        filled = path.format_map(acme.ids)
        params = {"reason": "looking for others"} if path.endswith("/content") else {}
        answer = call(stage, "GET", filled, params=params)
        assert answer.status_code < 500, (path, answer.text)
        seen[path] = told(answer, *acme.ids.values())
    assert len(seen) >= 18
    assert {path: names for path, names in seen.items() if names} == {}


def test_usage_of_a_person_of_another_tenant_is_not_theirs(stage: Stage, acme: Acme) -> None:
    user = f"{stage.issuer.issuer}#zz-ana"
    answer = call(stage, "GET", f"{ADMIN}/usage", params={"user": user, "department": "zz-dept"})
    assert told(answer, "zz-ana", "zz-dept") == []
    assert {one["used"] for window in answer.json()["data"] for one in window["quantities"]} == {0}


def explained(stage: Stage, tenant: str | None, *roles: str) -> httpx2.Response:
    principal = {"issuer": stage.issuer.issuer, "subject": "zz-ana", "roles": ["works"], "department": "zz-dept"}
    if tenant is not None:
        principal["tenant"] = tenant
    body = {"principal": principal, "action": "chat", "model": "mini"}
    return call(stage, "POST", f"{ADMIN}/authz:explain", *roles, json=body)


def test_an_explanation_is_of_callers_of_ones_own_tenant(stage: Stage, acme: Acme) -> None:
    answer = explained(stage, "acme")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_permitted")
    own = explained(stage, None).json()["limit_use"]
    assert {use["scope_key"].partition("/")[0]: use["requests"] for use in own} == {
        "user:beta": 0,
        "department:beta": 0,
    }


def test_claims_of_another_tenant_are_not_explained_either(stage: Stage, acme: Acme) -> None:
    claims = {"iss": stage.issuer.issuer, "sub": "zz-ana", "roles": ["works"], "tenant": "acme"}
    answer = call(stage, "POST", f"{ADMIN}/authz:explain", json={"claims": claims, "action": "chat", "model": "mini"})
    assert answer.status_code == 403


def test_what_was_used_needs_the_permission_to_read_limits(stage: Stage, acme: Acme) -> None:
    assert explained(stage, None, "reads-policy").json()["limit_use"] is None


def test_who_sees_all_tenants_is_told_of_all(stage: Stage, acme: Acme) -> None:
    used = explained(stage, "acme", "boss", "watches").json()["limit_use"]
    assert {use["scope_key"].partition("/")[0]: use["requests"] for use in used} == {
        "user:acme": 1,
        "department:acme": 1,
    }
    versions = call(stage, "GET", f"{ADMIN}/policies/versions", "boss", "watches").json()["data"]
    assert versions[0]["author"]["subject"] == "zz-boss"


def simulated(stage: Stage, *roles: str) -> dict[str, Any]:
    text = POLICY.replace("ids: [mini]", "ids: [maxi]")
    answer = call(
        stage,
        "POST",
        f"{ADMIN}/policies:simulate",
        *roles,
        content=text.encode(),
        headers={"content-type": "application/yaml"},
    )
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_simulation_replays_ones_own_tenant(stage: Stage, acme: Acme) -> None:
    assert (simulated(stage)["replayed"], simulated(stage)["flips"]) == (0, [])
    everywhere = simulated(stage, "boss", "watches")
    assert [(flip["tenant"], flip["subject"]) for flip in everywhere["flips"]] == [("acme", "zz-ana")]


def test_without_the_audit_permission_a_simulation_only_counts(stage: Stage, acme: Acme) -> None:
    found = simulated(stage, "reads-policy", "watches")
    assert (found["allow_to_deny"], found["flips"], found["flips_left_out"]) == (1, [], 1)


def test_nothing_of_another_tenant_can_be_changed(stage: Stage, acme: Acme) -> None:
    accounts = f"{ADMIN}/service-accounts/{acme.ids['account_id']}"
    tried = [
        call(stage, "PATCH", accounts, json={"disabled": True}, headers={"if-match": '"v1"'}),
        call(stage, "POST", f"{accounts}/keys", json={"name": "mine"}),
        call(stage, "DELETE", f"{accounts}/keys/{acme.ids['key_id']}"),
        call(stage, "POST", f"{accounts}/keys/{acme.ids['key_id']}:rotate", json={}),
        call(stage, "DELETE", f"{ADMIN}/revocations/{acme.ids['revocation_id']}"),
    ]
    assert [answer.status_code for answer in tried] == [404] * len(tried)


def test_a_stale_write_does_not_name_an_author_of_another_tenant(stage: Stage, acme: Acme) -> None:
    answer = call(
        stage,
        "PUT",
        f"{ADMIN}/policies/current",
        content=POLICY.encode(),
        headers={"if-match": '"v1-000000000000"', "content-type": "application/yaml"},
    )
    assert answer.status_code == 412
    assert told(answer) == []
