"""Reading recorded prompts and answers over HTTP: who may, with which reason, and what it leaves in the trail."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from tests.fakes.stage import Stage, _connect, apart

POLICY = """
apiVersion: esclusa/v1
kind: PolicySet
metadata: {name: content}
roles: {kept: {}, plain: {}, auditor: {}, policy-admin: {}, content-reader: {}}
rules:
  - id: kept
    effect: allow
    subjects: {roles: [kept]}
    actions: [chat, completions, embeddings]
    models: {ids: [mini, maxi, embed]}
    obligations: {contentLogging: encrypted}
  - {id: plain, effect: allow, subjects: {roles: [plain]}, actions: [chat], models: {ids: [mini]}}
  - {id: audit, effect: allow, subjects: {roles: [auditor]}, actions: [audit.read]}
  - {id: admin, effect: allow, subjects: {roles: [policy-admin]}, actions: [policy.read, policy.write]}
  - {id: content, effect: allow, subjects: {roles: [content-reader]}, actions: [content.read]}
"""
QUESTION = "¿Cuánto debe la señora Muñoz?"
WHY = "complaint 2026-118 of the customer"


@pytest.fixture(scope="module")
def stage_overrides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path: Path = tmp_path_factory.mktemp("content") / "policy.yaml"
    path.write_text(POLICY)
    key = base64.b64encode(b"k" * 32).decode()
    return {"access": {"policy_file": path}, "audit": {"content_keys": SecretStr(f"k-2026:{key}")}}


def ask(stage: Stage, role: str = "kept", **changes: Any) -> str:
    body = {"model": "mini", "messages": [{"role": "user", "content": QUESTION}], **changes}
    answer = httpx2.post(
        f"{stage.url}/v1/chat/completions", json=body, headers=stage.headers(role, sub="u-asks"), timeout=30
    )
    assert answer.status_code == 200, answer.text
    return answer.headers["x-request-id"]


def read(
    stage: Stage, request_id: str, role: str = "content-reader", reason: str | None = WHY, tenant: str = "acme"
) -> httpx2.Response:
    return httpx2.get(
        f"{stage.url}/admin/v1/audit/requests/{request_id}/content",
        params={} if reason is None else {"reason": reason},
        headers=stage.headers(role, sub=f"u-{role}", tenant=tenant),
        timeout=30,
    )


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_content_reader_sees_what_was_asked_and_answered(stage: Stage, stream: bool) -> None:
    answer = read(stage, ask(stage, stream=stream))
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    prompt, response = answer.json()["data"]
    assert (prompt["kind"], prompt["state"], prompt["key_id"]) == ("prompt", "readable", "k-2026")
    assert prompt["content"]["messages"][-1]["content"] == QUESTION
    assert (response["kind"], response["content"]["choices"]) == ("response", ["Hola, mundo!"])


def test_an_embedding_leaves_its_inputs_and_no_answer(stage: Stage) -> None:
    body = {"model": "embed", "input": [QUESTION, "otra"]}
    made = httpx2.post(f"{stage.url}/v1/embeddings", json=body, headers=stage.headers("kept"), timeout=30)
    (prompt,) = read(stage, made.headers["x-request-id"]).json()["data"]
    assert prompt["content"]["inputs"] == [QUESTION, "otra"]


def test_nothing_is_stored_where_policy_asks_for_nothing(stage: Stage) -> None:
    answer = read(stage, ask(stage, "plain")).json()
    assert (answer["data"], answer["content_level"]) == ([], "hash")
    assert "not recorded by policy" in answer["note"]


def test_a_text_that_somebody_presents_is_compared_with_the_record(stage: Stage) -> None:
    intent, completion = stage.records(ask(stage, "plain"))
    answered = [{"role": "assistant", "content": "Hola, mundo!"}]
    assert verdict(stage, intent, text=QUESTION) == "match"
    assert verdict(stage, intent, messages=[{"role": "user", "content": QUESTION}]) == "match"
    assert verdict(stage, intent, text=QUESTION + " ") == "no_match"
    assert verdict(stage, completion, kind="response", text="Hola, mundo!") == "match"
    assert verdict(stage, completion, kind="response", messages=answered) == "match"
    assert verdict(stage, intent, kind="response", text="Hola, mundo!") == "not_recorded"


TOOL = {
    "type": "function",
    "function": {"name": "saldo", "parameters": {"type": "object", "properties": {"de": {"type": "string"}}}},
}
ARGUMENTS = '{"de": "Muñoz"}'


def called(arguments: str) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "saldo", "arguments": arguments}}
    return {"role": "assistant", "content": "Veamos.", "tool_calls": [call]}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_an_answer_that_calls_tools_is_compared_as_the_caller_has_got_it(stage: Stage, stream: bool) -> None:
    named = {"index": 0, "id": "c1", "type": "function", "function": {"name": "saldo", "arguments": ""}}
    stage.upstream.says = {
        "message": called(ARGUMENTS),
        "deltas": [
            {"role": "assistant", "content": "Veamos."},
            {"tool_calls": [named]},
            *[{"tool_calls": [{"index": 0, "function": {"arguments": letter}}]} for letter in ARGUMENTS],
        ],
        "finish_reason": "tool_calls",
    }
    intent, completion = stage.records(ask(stage, "plain", stream=stream, tools=[TOOL]))
    asked = [{"role": "user", "content": QUESTION}]
    assert verdict(stage, intent, messages=asked, tools=[TOOL]) == "match"
    assert verdict(stage, intent, messages=asked) == "no_match"
    assert verdict(stage, completion, kind="response", messages=[called(ARGUMENTS)]) == "match"
    assert verdict(stage, completion, kind="response", messages=[called('{"de": "Nadie"}')]) == "no_match"
    assert verdict(stage, completion, kind="response", text="Veamos.") == "no_match"


def test_messages_that_no_chat_could_hold_are_not_compared(stage: Stage) -> None:
    intent, _ = stage.records(ask(stage, "plain"))
    url = f"{stage.url}/admin/v1/audit/events/{intent['event_id']}:compare"
    orphan = {"role": "tool", "tool_call_id": "nobody", "content": "3"}
    bad = [{"messages": [{"role": "user", "content": 3}]}, {"messages": [orphan], "tools": [TOOL, TOOL]}]
    for body in bad:
        answer = httpx2.post(url, json=body, headers=stage.headers("auditor", sub="u-auditor"))
        assert answer.status_code == 422, answer.text


def verdict(stage: Stage, row: dict[str, Any], **body: Any) -> str:
    url = f"{stage.url}/admin/v1/audit/events/{row['event_id']}:compare"
    answer = httpx2.post(url, json=body, headers=stage.headers("auditor", sub="u-auditor"), timeout=30)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["verdict"])


def test_an_auditor_reads_the_policy_that_a_record_names(stage: Stage) -> None:
    version = stage.records(ask(stage))[-1]["policy_version"]
    headers = stage.headers("auditor", sub="u-auditor")
    found = httpx2.get(f"{stage.url}/admin/v1/audit/policies/{version}", headers=headers)
    assert found.status_code == 200, found.text
    assert (found.json()["version"], "contentLogging: encrypted" in found.json()["source"]) == (version, True)
    (row,) = access_events(stage, found)
    assert row["target"] == f"audit/policies/{version}"
    assert httpx2.get(f"{stage.url}/admin/v1/policies/versions/{version}", headers=headers).status_code == 403


def test_the_database_holds_no_word_of_it(stage: Stage) -> None:
    request_id = ask(stage)
    rows = stage.records(request_id)
    assert [row["phase"] for row in rows] == ["intent", "completion"]
    for row in rows:
        assert "Muñoz" not in row["rec"].decode()
        assert "mundo" not in row["rec"].decode()
        sealed = json.loads(row["rec"])["content"]["sealed"]
        assert set(sealed) == {"prompt" if row["phase"] == "intent" else "response"}


@pytest.mark.parametrize("role", ["auditor", "policy-admin", "kept"])
def test_no_other_right_reads_content(stage: Stage, role: str) -> None:
    answer = read(stage, ask(stage), role)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_permitted")
    (row,) = access_events(stage, answer)
    assert (row["decision"], row["action"], row["subject"]) == ("deny", "content.read", f"u-{role}")


@pytest.mark.parametrize("reason", [None, "", "why", "         ", "x" * 501, WHY + "\x00", "\u200b" * 12])
def test_without_a_reason_nothing_is_shown_and_the_attempt_is_on_record(stage: Stage, reason: str | None) -> None:
    answer = read(stage, ask(stage), reason=reason)
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "reason")
    assert "Muñoz" not in answer.text
    (row,) = access_events(stage, answer)
    assert (row["subject"], row["action"], row["decision"]) == ("u-content-reader", "content.read", "error")
    assert row["http_status"] == 422


def test_a_reading_is_on_record_with_reader_reason_and_request(stage: Stage) -> None:
    request_id = ask(stage)
    answer = read(stage, request_id)
    (row,) = access_events(stage, answer)
    assert (row["subject"], row["action"], row["decision"]) == ("u-content-reader", "content.read", "allow")
    assert row["target"] == f"audit/requests/{request_id}/content"
    told = json.loads(row["personal"])
    assert told["reason"] == WHY
    assert told["diff"] == {"read": ["prompt:readable", "response:readable"]}


@pytest.mark.parametrize("whose", ["another tenant's", "nobody's"])
def test_a_request_that_is_not_ones_own_does_not_exist_and_the_attempt_is_on_record(stage: Stage, whose: str) -> None:
    request_id = ask(stage) if whose == "another tenant's" else "01a22de4-036b-71ec-ab41-31af08a57f6d"
    answer = read(stage, request_id, tenant="rival")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    (row,) = access_events(stage, answer)
    assert (row["tenant"], row["http_status"], json.loads(row["personal"])["reason"]) == ("rival", 404, WHY)


def access_events(stage: Stage, answer: httpx2.Response) -> list[dict[str, Any]]:
    """The events that a reading left."""

    async def fetch() -> list[dict[str, Any]]:
        connection = await _connect(stage.database_url)
        try:
            for _ in range(100):
                rows = await connection.fetch(
                    "SELECT * FROM audit_event WHERE request_id = $1", answer.headers["x-request-id"]
                )
                if rows:
                    return [dict(row) for row in rows]
                await asyncio.sleep(0.05)
            return []
        finally:
            await connection.close()

    return list(apart(fetch()))
