"""Anthropic's route passes the same guardrails, and leaves the same record, as a chat."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from tests.fakes.stage import Stage

CARD = ("Su tarjeta: 4533", " 1229 6", "016 47", "88", ". Puede ", "pagar ya.")
IN_PROMPT = "Mi tarjeta es 4533 1229 6016 4788, ¿vale?"
PARTS = ("4533 1229", "6016", "4788")


def ask(stage: Stage, role: str, content: Any = "Hola", **changes: Any) -> httpx2.Response:
    body = {"model": "mini", "max_tokens": 64, "messages": [{"role": "user", "content": content}], **changes}
    headers = stage.headers(role, sub=f"u-msg-{role}")
    return httpx2.post(f"{stage.url}/v1/messages", json=body, headers=headers, timeout=60)


def record(stage: Stage, answer: httpx2.Response) -> dict[str, Any]:
    _, completion = stage.records(answer.headers["x-request-id"])
    found: dict[str, Any] = json.loads(bytes(completion["rec"]))
    return found


def events(answer: httpx2.Response) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


def text_of(answer: httpx2.Response) -> str:
    if answer.headers["content-type"].startswith("application/json"):
        return "".join(block["text"] for block in answer.json()["content"])
    return "".join(event["delta"]["text"] for event in events(answer) if event["type"] == "content_block_delta")


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_an_answer_is_redacted(stage: Stage, stream: bool) -> None:
    stage.upstream.words = CARD
    answer = ask(stage, "redacted", stream=stream)
    assert text_of(answer) == "Su tarjeta: [CARD]. Puede pagar ya."
    assert not any(part in answer.text for part in PARTS)
    assert [(one["category"], one["action"]) for one in record(stage, answer)["safety"]] == [("card", "redact")]


def test_a_streamed_answer_that_is_blocked_ends_as_a_refusal(stage: Stage) -> None:
    stage.upstream.words = CARD
    answer = ask(stage, "blocked", stream=True)
    *_, delta, stop = events(answer)
    assert text_of(answer) == "Su tarjeta: "
    assert (delta["delta"]["stop_reason"], delta["x_esclusa"]["stop"]) == ("refusal", "guardrails")
    assert stop == {"type": "message_stop"}
    assert record(stage, answer)["result"]["stop_cause"] == "guardrails"


def test_a_whole_answer_that_is_blocked_is_an_error(stage: Stage) -> None:
    stage.upstream.words = CARD
    answer = ask(stage, "blocked")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "blocked_by_policy")
    assert answer.json()["error"]["type"] == "invalid_request_error"


CALL = {"type": "tool_use", "id": "toolu_1", "name": "pay", "input": {"card": IN_PROMPT}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": IN_PROMPT}
USER = {"role": "user", "content": "Hola"}
TOOL = {"name": "pay", "description": IN_PROMPT, "input_schema": {"type": "object"}}
PLACES: dict[str, dict[str, Any]] = {
    "tool": {"tools": [TOOL]},
    "text": {"messages": [{"role": "user", "content": IN_PROMPT}]},
    "block": {"messages": [{"role": "user", "content": [{"type": "text", "text": IN_PROMPT}]}]},
    "system": {"system": IN_PROMPT},
    "thinking": {
        "messages": [USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": IN_PROMPT}]}, USER]
    },
    "call": {"messages": [USER, {"role": "assistant", "content": [CALL]}, USER]},
    "result": {
        "messages": [
            USER,
            {"role": "assistant", "content": [{**CALL, "input": {}}]},
            {"role": "user", "content": [RESULT]},
        ]
    },
}


@pytest.mark.parametrize("place", PLACES)
def test_nothing_of_a_prompt_passes_uninspected(stage: Stage, place: str) -> None:
    answer = ask(stage, "blocked", **PLACES[place])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "blocked_by_policy"), answer.text
    assert stage.upstream.seen == []


@pytest.mark.parametrize("place", PLACES)
def test_nothing_of_a_prompt_reaches_an_upstream_unredacted(stage: Stage, place: str) -> None:
    answer = ask(stage, "redacted", **PLACES[place])
    assert answer.status_code == 200, answer.text
    (seen,) = stage.upstream.seen
    assert not any(part in json.dumps(seen.body) for part in PARTS)


def test_the_record_is_that_of_a_chat(stage: Stage) -> None:
    message = ask(stage, "plain", system="Sé breve.", metadata={"user_id": "agent-7"})
    body = {
        "model": "mini",
        "max_tokens": 64,
        "user": "agent-7",
        "messages": [{"role": "system", "content": "Sé breve."}, {"role": "user", "content": "Hola"}],
    }
    headers = stage.headers("plain", sub="u-msg-plain")
    chat = httpx2.post(f"{stage.url}/v1/chat/completions", json=body, headers=headers)
    ours, theirs = record(stage, message), record(stage, chat)
    for part in ("decision", "usage", "result"):
        assert ours[part] == theirs[part], part
    assert ours["who"].keys() == theirs["who"].keys()
    assert ours["what"].keys() == theirs["what"].keys()
    assert {row["action"] for row in stage.records(message.headers["x-request-id"])} == {"chat"}
    assert stage.upstream.seen[0].body == stage.upstream.seen[1].body
