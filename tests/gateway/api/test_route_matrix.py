"""The written matrix of routes and rights: what is not in it does not exist, and nobody gets past what is in it.

A route is public, open to every known caller, about a model, or behind exactly one administrative permission.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.access.document.vocabulary import ADMIN_ACTIONS, SERVICE_ACTIONS
from gateway.api.ranking import RERANK_PATHS, SCORE_PATHS
from gateway.api.tokens import DETOKENIZE_PATHS, TOKENIZE_PATHS
from gateway.app import create_app
from tests.fakes.routes import filled, flat_routes
from tests.fakes.stage import Stage, _connect, apart

PUBLIC, KNOWN, MODEL, KEPT = "public", "known", "model", "kept"
"""Kept: for whom policy keeps responses, which is nobody here."""
ADMIN = "/admin/v1"
MATRIX: dict[tuple[str, str], str] = {
    ("GET", "/livez"): PUBLIC,
    ("GET", "/readyz"): PUBLIC,
    ("GET", "/health"): PUBLIC,
    ("GET", "/openapi.json"): KNOWN,
    ("GET", "/v1/models"): KNOWN,
    ("GET", "/v1/models/"): KNOWN,
    ("GET", "/v1/models/{model_id:path}"): KNOWN,
    ("POST", "/v1/chat/completions"): MODEL,
    ("POST", "/v1/completions"): MODEL,
    ("POST", "/v1/embeddings"): MODEL,
    ("POST", "/v1/moderations"): MODEL,
    ("POST", "/v1/rerank"): MODEL,
    ("POST", "/v2/rerank"): MODEL,
    ("POST", "/rerank"): MODEL,
    ("POST", "/v1/score"): MODEL,
    ("POST", "/score"): MODEL,
    ("POST", "/v1/tokenize"): MODEL,
    ("POST", "/tokenize"): MODEL,
    ("POST", "/v1/detokenize"): MODEL,
    ("POST", "/detokenize"): MODEL,
    ("POST", "/v1/responses"): MODEL,
    ("POST", "/v1/responses/input_tokens"): MODEL,
    ("GET", "/v1/responses/{response_id}"): KNOWN,
    ("DELETE", "/v1/responses/{response_id}"): KNOWN,
    ("GET", "/v1/responses/{response_id}/input_items"): KNOWN,
    ("POST", "/v1/conversations"): KEPT,
    ("GET", "/v1/conversations/{conversation_id}"): KNOWN,
    ("POST", "/v1/conversations/{conversation_id}"): KNOWN,
    ("DELETE", "/v1/conversations/{conversation_id}"): KNOWN,
    ("GET", "/v1/conversations/{conversation_id}/items"): KNOWN,
    ("POST", "/v1/conversations/{conversation_id}/items"): KNOWN,
    ("GET", "/v1/conversations/{conversation_id}/items/{item_id}"): KNOWN,
    ("DELETE", "/v1/conversations/{conversation_id}/items/{item_id}"): KNOWN,
    ("POST", "/v1/messages"): MODEL,
    ("POST", "/v1/messages/count_tokens"): MODEL,
    ("POST", "/v1/files"): "batches.use",
    ("GET", "/v1/files"): "batches.use",
    ("GET", "/v1/files/{file_id}"): "batches.use",
    ("DELETE", "/v1/files/{file_id}"): "batches.use",
    ("GET", "/v1/files/{file_id}/content"): "batches.use",
    ("POST", "/v1/batches"): "batches.use",
    ("GET", "/v1/batches"): "batches.use",
    ("GET", "/v1/batches/{batch_id}"): "batches.use",
    ("POST", "/v1/batches/{batch_id}/cancel"): "batches.use",
    ("GET", f"{ADMIN}/policies/current"): "policy.read",
    ("PUT", f"{ADMIN}/policies/current"): "policy.write",
    ("GET", f"{ADMIN}/policies/versions"): "policy.read",
    ("GET", f"{ADMIN}/policies/versions/{{number}}"): "policy.read",
    ("GET", f"{ADMIN}/policies/versions/{{number}}/diff/{{other}}"): "policy.read",
    ("POST", f"{ADMIN}/policies/versions/{{number}}:restore"): "policy.write",
    ("POST", f"{ADMIN}/policies:validate"): "policy.read",
    ("POST", f"{ADMIN}/policies:simulate"): "policy.read",
    ("GET", f"{ADMIN}/policies/proposals"): "policy.read",
    ("GET", f"{ADMIN}/policies/proposals/{{proposal_id}}"): "policy.read",
    ("POST", f"{ADMIN}/policies/proposals/{{proposal_id}}:approve"): "policy.approve",
    ("POST", f"{ADMIN}/policies/proposals/{{proposal_id}}:reject"): "policy.approve",
    ("GET", f"{ADMIN}/role-bindings"): "policy.read",
    ("POST", f"{ADMIN}/role-bindings"): "policy.write",
    ("PUT", f"{ADMIN}/role-bindings/{{binding_id}}"): "policy.write",
    ("DELETE", f"{ADMIN}/role-bindings/{{binding_id}}"): "policy.write",
    ("POST", f"{ADMIN}/authz:explain"): "policy.read",
    ("GET", f"{ADMIN}/models"): "models.read",
    ("GET", f"{ADMIN}/models/{{model_id:path}}"): "models.read",
    ("GET", f"{ADMIN}/usage"): "limits.read",
    ("GET", f"{ADMIN}/budgets"): "limits.read",
    ("POST", f"{ADMIN}/usage:reset"): "limits.write",
    ("POST", f"{ADMIN}/service-accounts"): "identity.write",
    ("GET", f"{ADMIN}/service-accounts"): "identity.read",
    ("GET", f"{ADMIN}/service-accounts/{{account_id}}"): "identity.read",
    ("PATCH", f"{ADMIN}/service-accounts/{{account_id}}"): "identity.write",
    ("POST", f"{ADMIN}/service-accounts/{{account_id}}/keys"): "identity.write",
    ("GET", f"{ADMIN}/service-accounts/{{account_id}}/keys"): "identity.read",
    ("GET", f"{ADMIN}/service-accounts/{{account_id}}/keys/{{key_id}}"): "identity.read",
    ("POST", f"{ADMIN}/service-accounts/{{account_id}}/keys/{{key_id}}:rotate"): "identity.write",
    ("DELETE", f"{ADMIN}/service-accounts/{{account_id}}/keys/{{key_id}}"): "identity.write",
    ("POST", f"{ADMIN}/revocations"): "identity.write",
    ("GET", f"{ADMIN}/revocations"): "identity.read",
    ("GET", f"{ADMIN}/revocations/{{revocation_id}}"): "identity.read",
    ("DELETE", f"{ADMIN}/revocations/{{revocation_id}}"): "identity.write",
    ("GET", f"{ADMIN}/engines"): "engine.operate",
    ("GET", f"{ADMIN}/engines/{{model:path}}"): "engine.operate",
    ("POST", f"{ADMIN}/engines/{{model:path}}:pause"): "engine.operate",
    ("POST", f"{ADMIN}/engines/{{model:path}}:resume"): "engine.operate",
    ("POST", f"{ADMIN}/engines/{{model:path}}:drain"): "engine.operate",
    ("POST", f"{ADMIN}/engines/{{model:path}}:sleep"): "engine.operate",
    ("POST", f"{ADMIN}/engines/{{model:path}}:wake"): "engine.operate",
    ("POST", f"{ADMIN}/engines/{{model:path}}:clear-poison"): "engine.operate",
    ("GET", f"{ADMIN}/audit/events"): "audit.read",
    ("POST", f"{ADMIN}/audit/events/{{event_id}}:compare"): "audit.read",
    ("GET", f"{ADMIN}/audit/requests"): "audit.read",
    ("GET", f"{ADMIN}/audit/policies/{{version}}"): "audit.read",
    ("GET", f"{ADMIN}/audit/events/{{event_id}}"): "audit.read",
    ("GET", f"{ADMIN}/audit/requests/{{request_id}}/content"): "content.read",
}
BODIES: dict[str, Any] = {
    "/v1/chat/completions": {"model": "mini", "messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"model": "mini", "prompt": "x"},
    "/v1/messages/count_tokens": {"model": "mini", "messages": [{"role": "user", "content": "Hola"}]},
    "/v1/messages": {"model": "mini", "max_tokens": 8, "messages": [{"role": "user", "content": "Hola"}]},
    "/v1/embeddings": {"model": "embed", "input": "x"},
    "/v1/responses": {"model": "mini", "input": "x"},
    "/v1/responses/input_tokens": {"model": "mini", "input": "x"},
    "/v1/moderations": {"input": "x"},
    **{path: {"model": "embed", "query": "x", "documents": ["y"]} for path in RERANK_PATHS},
    **{path: {"model": "embed", "text_1": "x", "text_2": "y"} for path in SCORE_PATHS},
    **{path: {"model": "mini", "prompt": "x"} for path in TOKENIZE_PATHS},
    **{path: {"model": "mini", "tokens": [1]} for path in DETOKENIZE_PATHS},
}
OF_OUR_OWN_MODELS = {"/v1/messages/count_tokens", "/v1/responses/input_tokens", *TOKENIZE_PATHS, *DETOKENIZE_PATHS}
"""Nobody can count for the models here, which are those of an upstream: what they say is no refusal of the caller."""
PERMISSIONS = {*ADMIN_ACTIONS, *SERVICE_ACTIONS}
ROLES = {action.replace(".", "-"): {action} for action in PERMISSIONS}
"""One role for each permission, so that a route shows which one it asks for."""
EVERYBODY = {**ROLES, "all-rights": set(ADMIN_ACTIONS), "model-user": {MODEL}, "nothing": set()}


def policy() -> str:
    grants = [
        f"  - {{id: {role}, effect: allow, subjects: {{roles: [{role}]}}, actions: [{', '.join(sorted(actions))}]}}"
        for role, actions in EVERYBODY.items()
        if actions and MODEL not in actions
    ]
    return "\n".join(
        [
            "apiVersion: esclusa/v1",
            "kind: PolicySet",
            "metadata: {name: matrix}",
            f"roles: {{{', '.join(f'{role}: {{}}' for role in EVERYBODY)}}}",
            "rules:",
            "  - {id: use, effect: allow, subjects: {roles: [model-user]}, "
            "actions: [chat, completions, embeddings, moderations], models: {ids: [mini, embed, esclusa-guardrails]}}",
            *grants,
        ]
    )


@pytest.fixture(scope="module")
def stage_overrides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path: Path = tmp_path_factory.mktemp("matrix") / "policy.yaml"
    path.write_text(policy())
    return {"access": {"policy_file": path}}


def call(client: httpx2.Client, method: str, pattern: str, headers: dict[str, str]) -> httpx2.Response:
    named = {**headers, "content-type": "application/json"}
    if method == "GET":
        return client.request(method, filled(pattern), headers=named)
    return client.request(method, filled(pattern), headers=named, json=BODIES.get(pattern, {}))


def test_the_matrix_names_every_route_and_no_other(stage: Stage) -> None:
    assert sorted(flat_routes(create_app(stage.gateway.services).routes)) == sorted(MATRIX)


def test_the_page_of_endpoints_names_every_public_route_and_no_other() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "endpoints.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([A-Z]+) (/[^`]*)` \|", page, re.MULTILINE)
    assert sorted(rows) == sorted(route for route in MATRIX if not route[1].startswith(ADMIN))


def test_every_permission_guards_a_route() -> None:
    opens_more = {"tenants.all"}  # of routes that one may use: it guards none by itself
    assert {right for right in MATRIX.values() if "." in right} == PERMISSIONS - opens_more


def test_a_stranger_gets_nothing_but_the_probes(stage: Stage) -> None:
    with httpx2.Client(base_url=stage.url) as client:
        for (method, pattern), right in MATRIX.items():
            answer = call(client, method, pattern, {})
            if right == PUBLIC:
                assert answer.status_code == 200, pattern
            else:
                assert (answer.status_code, answer.json()["error"]["code"]) == (401, "missing_token"), pattern


@pytest.mark.parametrize("role", sorted(EVERYBODY))
def test_each_role_gets_past_exactly_the_doors_that_the_matrix_gives_it(stage: Stage, role: str) -> None:
    with httpx2.Client(base_url=stage.url, headers=stage.headers(role, sub=f"u-{role}"), timeout=30) as client:
        for (method, pattern), right in MATRIX.items():
            answer = call(client, method, pattern, {})
            where = (method, pattern, answer.text)
            if right in (PUBLIC, KNOWN):
                assert answer.status_code in (200, 404), where
            elif right == KEPT:
                assert (answer.status_code, answer.json()["error"]["code"]) == (403, "conversations_not_permitted")
            elif right in EVERYBODY[role]:
                assert answer.status_code not in (401, 403, 405, 500), where
                assert right != MODEL or answer.status_code == (400 if pattern in OF_OUR_OWN_MODELS else 200), where
            else:
                expected = "model_not_permitted" if right == MODEL else "not_permitted"
                assert (answer.status_code, answer.json()["error"]["code"]) == (403, expected), where


def test_no_administrative_right_lists_a_model(stage: Stage) -> None:
    answer = httpx2.get(f"{stage.url}/v1/models", headers=stage.headers("all-rights"))
    assert answer.json()["data"] == []


@pytest.mark.parametrize("path", ["/v1/models", "/openapi.json", "/admin/v1/models"])
def test_a_refused_stranger_is_on_record_also_where_no_model_runs(stage: Stage, path: str) -> None:
    answer = httpx2.get(stage.url + path, headers={"authorization": "Bearer nobody"})
    assert answer.status_code == 401
    (row,) = apart(_access(stage.database_url, answer.headers["x-request-id"]))
    assert (row["phase"], row["decision"], row["deny_code"]) == ("access", "deny", "invalid_token")


async def _access(url: str, request_id: str) -> list[Any]:
    connection = await _connect(url)
    try:
        for _ in range(100):
            rows = await connection.fetch("SELECT * FROM audit_event WHERE request_id = $1", request_id)
            if rows:
                return list(rows)
            await asyncio.sleep(0.05)
        return []
    finally:
        await connection.close()
