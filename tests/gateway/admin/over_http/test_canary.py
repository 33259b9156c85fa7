"""A name that goes in anywhere, by any route, is in no hashed record, and erasure takes it out of the trail."""

from __future__ import annotations

import asyncio
import itertools
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.access.document.vocabulary import ADMIN_ACTIONS
from gateway.app import create_app
from gateway.audit.erasure import erase
from gateway.audit.public_path import HIDDEN, public_path
from gateway.audit.verify import verify
from gateway.storage.postgres import make_engine
from tests.fakes.routes import flat_routes
from tests.fakes.stage import Stage, _connect, apart

NAME = "carlos.montiel"
MAIL = "c.montiel@bank.example"
BODIES: dict[str, Any] = {
    "/v1/chat/completions": {
        "model": "mini",
        "messages": [{"role": "user", "content": f"Soy {NAME}"}],
        "user": NAME,
        "metadata": {"owner": NAME, MAIL: "x"},
    },
    "/v1/completions": {"model": "mini", "prompt": NAME, "user": MAIL},
    "/v1/embeddings": {"model": "embed", "input": NAME, "user": NAME},
    "/admin/v1/usage:reset": {"user": f"https://idp#{NAME}", "reason": f"asked by {MAIL}"},
    "/admin/v1/role-bindings": {
        "id": f"for-{NAME}",
        "roles": ["nothing"],
        "principals": [f"https://idp#{NAME}"],
        "reason": NAME,
    },
    "/admin/v1/revocations": {"kind": "subject", "issuer": "https://idp", "subject": NAME, "reason": f"of {MAIL}"},
    "/admin/v1/service-accounts": {"name": NAME, "roles": []},
    "/admin/v1/policies:simulate": {"reason": NAME},
}
QUERY = {
    "/admin/v1/usage": {"user": f"https://idp#{NAME}"},
    "/admin/v1/audit/events": {"subject": NAME},
    "/admin/v1/role-bindings": {"role": NAME},
}
ROLES = "everything"


def policy() -> str:
    return f"""
apiVersion: esclusa/v1
kind: PolicySet
metadata: {{name: canary}}
roles: {{{ROLES}: {{}}, nothing: {{}}}}
rules:
  - {{id: admin, effect: allow, subjects: {{roles: [{ROLES}]}}, actions: [{", ".join(sorted(ADMIN_ACTIONS))}]}}
  - {{id: use, effect: allow, subjects: {{roles: [{ROLES}]}}, actions: [chat, completions, embeddings],
     models: {{ids: [mini, embed]}}}}
  - {{id: not-so, effect: deny, subjects: {{roles: [{ROLES}]}}, actions: [completions],
     reason: "Ask {NAME} or {MAIL}.", when: {{purpose: {{in: [billing]}}}}}}
limits:
  - {{id: each-user, scope: {{each: user}}, window: day, requests: 1000}}
"""


@pytest.fixture(scope="module")
def stage_overrides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path: Path = tmp_path_factory.mktemp("canary") / "policy.yaml"
    path.write_text(policy())
    return {"access": {"policy_file": path}}


def call_everything(stage: Stage, subject: str) -> set[tuple[str, str, int]]:
    """Every route with the name in its path, query, body and headers, as that subject; what was answered."""
    headers = {
        **stage.headers(ROLES, sub=subject),
        "x-request-id": NAME,
        "user-agent": MAIL,
        "x-change-reason": f"for {NAME}",
        "changed-by": MAIL,
        "if-match": f'"{NAME}"',
        "x-esclusa-purpose": f"for-{NAME}",
        "x-esclusa-data-class": MAIL,
    }
    seen, numbers = set(), itertools.count()
    with httpx2.Client(base_url=stage.url, timeout=30) as client:
        current = client.get("/admin/v1/policies/current", headers=headers).headers["etag"]
        for method, pattern in flat_routes(create_app(stage.gateway.services).routes):
            path = pattern
            for name in ("model_id:path", "model:path", "binding_id", "account_id", "key_id", "revocation_id"):
                path = path.replace(f"{{{name}}}", NAME)
            path = path.replace("{number}", "1").replace("{other}", "1")
            query = (
                {**QUERY.get(pattern, {}), "reason": f"because of {NAME}"}
                if "content" in pattern
                else QUERY.get(pattern)
            )
            for etag in (headers["if-match"], current):
                answer = client.request(
                    method,
                    path.replace("{", "").replace("}", ""),
                    params=query,
                    headers={**headers, "if-match": etag, "idempotency-key": f"{NAME} {next(numbers)}"},
                    json=BODIES.get(pattern, {"reason": NAME, "name": NAME}) if method != "GET" else None,
                )
                seen.add((method, pattern, answer.status_code))
                current = answer.headers.get("etag", current) if pattern.endswith("role-bindings") else current
        for path, more in (
            ("/v1/chat/completions", {"model": f"of-{NAME}"}),
            ("/v1/completions", {"model": "mini", "max_tokens": 2}),
        ):
            said = {**headers, "x-esclusa-purpose": "billing"}
            answer = client.post(path, headers=said, json={**BODIES[path], **more})
            seen.add(("POST", path, answer.status_code))
    return seen


async def trail(url: str, condition: str = "true") -> list[dict[str, Any]]:
    connection = await _connect(url)
    try:
        rows = await connection.fetch(f"SELECT *, audit_event::text AS whole FROM audit_event WHERE {condition}")
        return [dict(row) for row in rows]
    finally:
        await connection.close()


async def settled(stage: Stage) -> None:
    await asyncio.wrap_future(
        asyncio.run_coroutine_threadsafe(stage.gateway.services.audit.settle(10), stage.gateway.loop)  # type: ignore[attr-defined]
    )


def test_a_name_is_in_no_hashed_record_and_erasure_takes_it_out_of_the_rest(stage: Stage) -> None:
    seen = call_everything(stage, NAME) | call_everything(stage, "u-admin")
    assert {status for _, _, status in seen} >= {200, 201, 404, 412, 422}
    assert ("POST", "/admin/v1/revocations", 201) in seen
    assert ("POST", "/admin/v1/role-bindings", 200) in seen

    async def work() -> None:
        await settled(stage)
        rows = await trail(stage.database_url)
        assert {row["phase"] for row in rows} >= {"intent", "completion", "admin", "access"}
        for row in rows:
            for canary in (NAME, MAIL):
                assert canary.encode() not in row["rec"], row["rec"]
                for name in ("route", "target", "rule_id", "credential_id", "model_requested"):
                    assert canary not in (row[name] or ""), (name, row[name])
        written = [row["personal"] or "" for row in rows]
        for name in ("purpose", "data_class", "model_requested", "policy_reason"):
            assert any(f'"{name}"' in personal for personal in written), name
        assert {row["model_requested"] for row in rows} == {None, "*", "mini", "embed"}
        assert any(b'"purpose":"billing"' in row["rec"] for row in rows)
        named = [row for row in rows if NAME in row["whole"]]
        assert any(row["subject"] == NAME for row in named)
        assert any(row["subject"] == "u-admin" for row in named)

        engine = make_engine(stage.database_url)
        told: list[dict[str, Any]] = []

        async def tell(facts: dict[str, Any]) -> None:
            told.append(facts)

        issuer = next(row["issuer"] for row in rows if row["subject"] == NAME)
        erased = await erase(engine, tenant="acme", issuer=issuer, subject=NAME, also=(MAIL,), tell=tell)
        assert erased.own > 10
        assert erased.mentions > 5
        connection = await _connect(stage.database_url)
        left = await connection.fetch(
            "SELECT personal, subject, target FROM audit_event WHERE personal::text ~ $1", NAME
        )
        mine = await connection.fetchval("SELECT count(*) FROM audit_event WHERE subject = $1", NAME)
        await connection.close()
        # What another caller's own client said of itself (user agent, request id) is that caller's.
        assert mine == 0
        assert all(row["subject"] == "u-admin" for row in left)
        key = stage.gateway.services.audit.commitment_key  # type: ignore[attr-defined]
        assert NAME not in str(told)
        problems = [problem async for report in verify(engine, key=key) for problem in report.problems]
        assert {problem.kind for problem in problems} == {"erased_without_record"}  # what was told is not in the trail
        await engine.dispose()

    apart(work())


def test_every_word_of_our_own_routes_may_be_shown(stage: Stage) -> None:
    for _, pattern in flat_routes(create_app(stage.gateway.services).routes):
        plain = re.sub(r"\{[^}]+\}", "1", pattern)
        assert HIDDEN not in public_path(plain), plain


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("audit/events?subject=ana", "audit/events"),
        ("usage/user:https://idp#ana", "usage/*://*"),
        ("role-bindings/ana", "role-bindings/*"),
        ("policies/versions/3:restore", "policies/versions/3:restore"),
        ("engines/ana:pause", "engines/*:pause"),
        (
            "v1/responses/resp_0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a/input_items",
            "v1/responses/resp_0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a/input_items",
        ),
        ("v1/conversations/conv_ana", "v1/conversations/*"),
        ("revocations/01a22de4-036b-71ec-ab41-31af08a57f6d", "revocations/01a22de4-036b-71ec-ab41-31af08a57f6d"),
    ],
)
def test_what_people_name_in_a_path_is_hidden(path: str, shown: str) -> None:
    assert public_path(path) == shown
