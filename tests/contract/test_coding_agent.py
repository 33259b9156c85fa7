"""The request of a coding agent, replayed over HTTP: with its headers, its query, and what it makes of the answer."""

from __future__ import annotations

import json
from typing import Any

import httpx2

from tests.fakes.agent_body import HEADERS, agent_body
from tests.fakes.stage import Stage


def replay(stage: Stage, body: dict[str, Any]) -> httpx2.Response:
    headers = {**HEADERS, **stage.headers(sub="u-agent")}
    return httpx2.post(f"{stage.url}/v1/messages?beta=true", json=body, headers=headers, timeout=60)


def test_an_agents_request_is_answered_and_its_hints_are_told(stage: Stage) -> None:
    answer = replay(stage, agent_body("mini"))
    assert answer.status_code == 200, answer.text
    kinds = [line.removeprefix("event: ") for line in answer.text.splitlines() if line.startswith("event: ")]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert set(answer.headers["x-esclusa-ignored"].split(", ")) == {
        "cache_control",
        "context_management",
        "output_config.effort",
        "thinking",
        "x-anthropic-billing-header",
        "anthropic-beta",
    }
    seen = stage.upstream.seen[-1].body
    assert len(seen["tools"]) == 121
    assert seen["messages"][0] == {"role": "system", "content": "You are an agent.\nBe brief."}
    assert "billing" not in json.dumps(seen)
    assert "device_id" not in json.dumps(seen)


def test_what_an_agent_says_of_itself_is_a_label_on_the_record(stage: Stage) -> None:
    answer = replay(stage, agent_body("mini"))
    intent, _ = stage.records(answer.headers["request-id"])
    assert intent["action"] == "chat"
    assert "user_label" in json.loads(bytes(intent["rec"]))["who"]["commit"]


def test_an_agents_prompt_that_does_not_fit_is_told_in_the_words_at_which_it_compacts(stage: Stage) -> None:
    body = agent_body("tiny", tools=0, rules="Be brief. " * 400)
    answer = replay(stage, {**body, "messages": body["messages"][:1]})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert "prompt is too long" in error["message"]
