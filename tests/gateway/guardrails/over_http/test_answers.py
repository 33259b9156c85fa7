"""Answers over HTTP, streamed and whole, from an upstream and from the own engine: nothing of a secret leaves."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from tests.fakes.stage import Stage

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
CARD = ("Su tarjeta: 4533", " 1229 6", "016 47", "88", ". Puede ", "pagar ya.")
PARTS = ("4533 1229", "6016", "4788")
REDACTED = "Su tarjeta: [CARD]. Puede pagar ya."
CONSTRAINED: dict[str, Any] = {"guided_regex": r"Es 3679647(6|6)H\.", "max_tokens": 60}
"""A form in which nothing can be found, for an answer in which something can."""


def ask(stage: Stage, role: str, path: str = CHAT, **changes: Any) -> httpx2.Response:
    content = {"messages": [{"role": "user", "content": "Hola"}]} if path == CHAT else {"prompt": "Hola"}
    body = {"model": "mini", **content, **changes}
    return httpx2.post(stage.url + path, json=body, headers=stage.headers(role, sub=f"u-out-{role}"), timeout=60)


def chunks(answer: httpx2.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def text_of(answer: httpx2.Response) -> str:
    if answer.headers["content-type"].startswith("application/json"):
        (choice,) = answer.json()["choices"]
        return str(choice["message"]["content"] if "message" in choice else choice["text"])
    choices = [choice for chunk in chunks(answer) for choice in chunk["choices"]]
    return "".join(choice["delta"].get("content", "") if "delta" in choice else choice["text"] for choice in choices)


def record(stage: Stage, answer: httpx2.Response) -> dict[str, Any]:
    _, completion = stage.records(answer.headers["x-request-id"])
    found: dict[str, Any] = json.loads(bytes(completion["rec"]))
    return found


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_an_answer_of_an_upstream_is_redacted(stage: Stage, path: str, stream: bool) -> None:
    stage.upstream.words = CARD
    answer = ask(stage, "redacted", path, stream=stream)
    assert answer.status_code == 200
    assert text_of(answer) == REDACTED
    assert not any(part in answer.text for part in PARTS)
    assert [
        (one["category"], one["action"], one["direction"], one["where"]) for one in record(stage, answer)["safety"]
    ] == [("card", "redact", "out", "answer")]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_streamed_answer_that_holds_a_card_ends_with_content_filter(stage: Stage, path: str) -> None:
    stage.upstream.words = CARD
    answer = ask(stage, "blocked", path, stream=True, stream_options={"include_usage": True})
    *_, last, usage = chunks(answer)
    assert answer.status_code == 200
    assert text_of(answer) == "Su tarjeta: "
    assert not any(part in answer.text for part in PARTS)
    assert last["choices"][0]["finish_reason"] == "content_filter"
    assert last["x_esclusa"]["stop"] == "guardrails"
    assert usage["usage"]["completion_tokens"] >= 4
    written = record(stage, answer)
    assert (written["result"]["finish_reason"], written["result"]["stop_cause"]) == ("content_filter", "guardrails")
    assert written["usage"]["tokens_out"] >= 4
    assert [(one["category"], one["action"]) for one in written["safety"]] == [("card", "block")]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_whole_answer_that_holds_a_card_is_a_400_and_its_tokens_are_charged(stage: Stage, path: str) -> None:
    stage.upstream.words = CARD
    answer = ask(stage, "blocked", path)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "blocked_by_policy", "card")
    assert not any(part in answer.text for part in PARTS)
    written = record(stage, answer)
    assert written["result"]["status"] == 400
    assert written["decision"]["deny_code"] == "blocked_by_policy"
    assert (written["usage"]["tokens_in"], written["usage"]["tokens_out"]) == (11, len(CARD))


def test_several_whole_choices_are_each_redacted(stage: Stage) -> None:
    stage.upstream.words = CARD
    answer = ask(stage, "redacted", n=3)
    assert [choice["message"]["content"] for choice in answer.json()["choices"]] == [REDACTED] * 3
    assert record(stage, answer)["safety"][0]["count"] == 3


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_flagging_changes_no_byte_of_an_answer(stage: Stage, stream: bool) -> None:
    stage.upstream.words = CARD
    answer = ask(stage, "flagged", stream=stream)
    assert text_of(answer) == "".join(CARD)
    if stream:
        assert [text for chunk in chunks(answer) if (text := chunk["choices"][0]["delta"].get("content"))] == list(CARD)
    assert [(one["category"], one["action"]) for one in record(stage, answer)["safety"]] == [("card", "flag")]


def test_an_answer_without_findings_streams_as_it_came(stage: Stage) -> None:
    answer = ask(stage, "redacted", stream=True)
    assert text_of(answer) == "Hola, mundo!"
    assert "safety" not in record(stage, answer)


def test_structured_answers_stay_json(stage: Stage) -> None:
    stage.upstream.words = ('{"tarjeta": 4533', "122960164788", ', "nota": "ana@exa', 'mple.com"}')
    answer = ask(stage, "redacted", response_format={"type": "json_object"}, stream=True)
    assert json.loads(text_of(answer)) == {"tarjeta": None, "nota": "[EMAIL]"}


def test_a_stop_string_and_a_limit_still_let_go_what_was_held(stage: Stage) -> None:
    stage.upstream.keeps_limits, stage.upstream.words = True, ("uno ", "dos ", "tres ", "cua")
    answer = ask(stage, "redacted", stream=True, max_tokens=3)
    assert text_of(answer) == "uno dos tres "
    assert chunks(answer)[-1]["choices"][0]["finish_reason"] == "length"


def test_an_upstream_that_dies_leaves_no_half_of_a_number_behind(stage: Stage) -> None:
    stage.upstream.mode, stage.upstream.words = "die", ("Es 4533 12", "29 6016", " 4788")
    answer = ask(stage, "redacted", stream=True)
    assert "4533" not in answer.text
    assert "[DONE]" not in answer.text
    assert "upstream_failed" in answer.text


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_an_answer_of_the_own_engine_is_redacted_token_by_token(stage: Stage, stream: bool) -> None:
    answer = ask(stage, "redacted", model="tiny", stream=stream, **CONSTRAINED)
    assert answer.status_code == 200, answer.text
    assert text_of(answer) == "Es [ES_NIF]."


def test_the_own_engine_is_stopped_at_a_block_and_what_it_made_is_charged(stage: Stage) -> None:
    streamed = ask(stage, "blocked", model="tiny", stream=True, **CONSTRAINED)
    assert text_of(streamed) == "Es "
    assert chunks(streamed)[-1]["choices"][0]["finish_reason"] == "content_filter"
    whole = ask(stage, "blocked", model="tiny", **CONSTRAINED)
    assert (whole.status_code, whole.json()["error"]["param"]) == (400, "es_nif")
    for answer in (streamed, whole):
        usage = record(stage, answer)["usage"]
        assert (usage["source"], usage["tokens_out"] > 3) == ("engine", True)


def test_an_echoed_prompt_is_read_on_its_way_out(stage: Stage) -> None:
    answer = ask(stage, "flagged", COMPLETIONS, model="tiny", prompt="El DNI 36796476H es", echo=True, max_tokens=4)
    assert {(one["category"], one["direction"]) for one in record(stage, answer)["safety"]} >= {
        ("es_nif", "in"),
        ("es_nif", "out"),
    }
