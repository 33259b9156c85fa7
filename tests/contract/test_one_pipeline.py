"""Every route that works for a caller passes the same pipeline: policy, limits, guardrails and audit.

The routes come from the written matrix of all routes: one that is added is held to this too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.api.ranking import RERANK_PATHS, SCORE_PATHS
from gateway.api.tokens import DETOKENIZE_PATHS, TOKENIZE_PATHS
from tests.fakes.stage import Stage
from tests.gateway.api.test_route_matrix import MATRIX, MODEL

NIF = "36796476H"
POLICY = f"""
apiVersion: esclusa/v1
kind: PolicySet
metadata: {{name: one-pipeline}}
roles: {{user: {{}}, limited: {{}}, blocked: {{}}, redacted: {{}}, stranger: {{}}}}
rules:
{
    "".join(
        f"  - {{id: {role}, effect: allow, subjects: {{roles: [{role}]}}, "
        "actions: [chat, completions, embeddings, moderations], models: {ids: [tiny, esclusa-guardrails]}, "
        f"obligations: {{redaction: {redaction}}}}}" + chr(10)
        for role, redaction in {"user": '"off"', "limited": '"off"', "blocked": "block", "redacted": "redact"}.items()
    )
}
limits:
  - {{id: one, scope: {{role: limited, each: user}}, window: minute, requests: 1}}
"""
TEXTS: dict[str, Any] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "{text}"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "{text}", "max_tokens": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": "{text}"}], "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "{text}"}]},
    "/v1/embeddings": {"input": "{text}"},
    "/v1/responses": {"input": "{text}", "max_output_tokens": 16},
    "/v1/responses/input_tokens": {"input": "{text}"},
    **{path: {"query": "a", "documents": ["{text}"]} for path in RERANK_PATHS},
    **{path: {"text_1": "a", "text_2": "{text}"} for path in SCORE_PATHS},
    **{path: {"prompt": "{text}"} for path in TOKENIZE_PATHS},
}
BODIES = TEXTS | {"/v1/moderations": {"input": "{text}"}} | {path: {"tokens": [1]} for path in DETOKENIZE_PATHS}
"""Each with the place of a text. Moderations tell what guardrails find, and ids of tokens are no text."""
SCHEMA = {"type": "object", "properties": {"q": {"type": "string", "description": "{text}"}}}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"q": "{text}"})}}
ASK = {"role": "user", "content": "x"}
WITH_TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat: schema": ("/v1/chat/completions", {"messages": [ASK], "tools": [
                     {"type": "function", "function": FUNCTION}]}),
    "chat: arguments": ("/v1/chat/completions", {"messages": [ASK, {"role": "assistant", "tool_calls": [CALL]},
                        {"role": "tool", "tool_call_id": "c", "content": "3"}]}),
    "chat: result": ("/v1/chat/completions", {"messages": [ASK, {"role": "assistant", "tool_calls": [CALL | {
                     "function": {"name": "f", "arguments": "{}"}}]},
                     {"role": "tool", "tool_call_id": "c", "content": "{text}"}]}),
    "messages: schema": ("/v1/messages", {"messages": [ASK], "max_tokens": 2,
                         "tools": [{"name": "f", "input_schema": SCHEMA}]}),
    "messages: arguments": ("/v1/messages", {"max_tokens": 2, "messages": [ASK, {"role": "assistant", "content": [
                            {"type": "tool_use", "id": "c", "name": "f", "input": {"q": "{text}"}}]},
                            {"role": "user", "content": [
                                {"type": "tool_result", "tool_use_id": "c", "content": "3"}]}]}),
    "messages: result": ("/v1/messages", {"max_tokens": 2, "messages": [ASK, {"role": "assistant", "content": [
                         {"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
                         {"role": "user", "content": [
                             {"type": "tool_result", "tool_use_id": "c", "content": "{text}"}]}]}),
    "responses: schema": ("/v1/responses", {"input": "x", "tools": [{"type": "function", **FUNCTION}]}),
    "responses: arguments": ("/v1/responses", {"input": [ASK, {"type": "function_call", "call_id": "c", "name": "f",
                             "arguments": json.dumps({"q": "{text}"})},
                             {"type": "function_call_output", "call_id": "c", "output": "3"}]}),
    "responses: result": ("/v1/responses", {"input": [ASK, {"type": "function_call", "call_id": "c", "name": "f",
                          "arguments": "{}"}, {"type": "function_call_output", "call_id": "c", "output": "{text}"}]}),
}  # fmt: skip


@pytest.fixture(scope="module")
def stage_overrides(stage_overrides: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path: Path = tmp_path_factory.mktemp("pipeline") / "policy.yaml"
    path.write_text(POLICY, encoding="utf-8")
    return stage_overrides | {"access": {"policy_file": path}}


def ask(stage: Stage, path: str, role: str, subject: str, body: dict[str, Any] | None = None, *,
        text: str = "Hola") -> httpx2.Response:  # fmt: skip
    filled = json.loads(json.dumps(BODIES[path] if body is None else body).replace("{text}", text))
    named = filled if path == "/v1/moderations" else {"model": "tiny", **filled}
    return httpx2.post(stage.url + path, json=named, headers=stage.headers(role, sub=subject), timeout=60)


def blocked(answer: httpx2.Response) -> bool:
    return answer.status_code == 400 and "The content was blocked by policy." in answer.json()["error"]["message"]


def test_every_route_of_models_is_here() -> None:
    assert sorted(BODIES) == sorted(path for (_, path), right in MATRIX.items() if right == MODEL)


@pytest.mark.parametrize("path", sorted(BODIES))
def test_what_policy_does_not_grant_is_refused_and_on_record(stage: Stage, path: str) -> None:
    subject = f"u-stranger-{path}"
    answer = ask(stage, path, "stranger", subject)
    assert answer.status_code == 403, answer.text
    rows = stage.records_of(subject)
    assert [(row["phase"], row["decision"]) for row in rows] == [("intent", "deny"), ("completion", "deny")]
    assert {(row["route"], row["http_status"]) for row in rows} == {(path, 403)}


@pytest.mark.parametrize("path", sorted(BODIES))
def test_what_is_served_is_on_record_before_and_after(stage: Stage, path: str) -> None:
    subject = f"u-user-{path}"
    answer = ask(stage, path, "user", subject)
    assert answer.status_code == 200, answer.text
    intent, completion = stage.records_of(subject)
    assert (intent["phase"], completion["phase"], completion["outcome"]) == ("intent", "completion", "ok")
    assert {str(intent["request_id"]), str(completion["request_id"])} == {answer.headers["x-request-id"]}
    assert {(row["route"], row["rule_id"], row["policy_version"]) for row in (intent, completion)} == {
        (path, "user", 1)
    }


@pytest.mark.parametrize("path", sorted(BODIES))
def test_limits_count_every_route(stage: Stage, path: str) -> None:
    subject = f"u-limited-{path}"
    assert ask(stage, path, "limited", subject).status_code == 200
    again = ask(stage, path, "limited", subject)
    assert (again.status_code, int(again.headers["retry-after"]) > 0) == (429, True), again.text


@pytest.mark.parametrize("path", sorted(TEXTS))
def test_guardrails_read_every_text(stage: Stage, path: str) -> None:
    assert ask(stage, path, "blocked", "u-clean").status_code == 200
    assert blocked(ask(stage, path, "blocked", "u-block", text=f"Mi DNI es {NIF}"))


@pytest.mark.parametrize("where", sorted(WITH_TOOLS))
def test_guardrails_read_tools_their_arguments_and_results(stage: Stage, where: str) -> None:
    path, body = WITH_TOOLS[where]
    assert blocked(ask(stage, path, "blocked", "u-tools", body, text=f"DNI {NIF}"))
