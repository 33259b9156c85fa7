"""The Responses API as the OpenAI SDK speaks it: whole, streamed, structured, with tools, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from gateway.api.early_stream import EarlyStream
from gateway.api.http.dialects import OPENAI
from gateway.api.responses.answers import ResponseEvent, ResponseView
from gateway.api.responses.create import CreateResponse
from gateway.api.responses.object import Ending
from gateway.api.sse import PING, SSE_HEADERS
from gateway.flow.values import ChoiceEnd, TextDelta
from tests.contract.test_tools import SAYS
from tests.fakes.stage import Stage

TEXT_EVENTS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


class Clima(BaseModel):
    """El tiempo que hace en una ciudad."""

    ciudad: str


TOOLS: list[Any] = [
    {
        "type": "function",
        "name": "Clima",
        "description": "El tiempo.",
        "parameters": {**Clima.model_json_schema(), "additionalProperties": False},
        "strict": True,
    }
]


@pytest.fixture
def client(stage: Stage) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{stage.url}/v1", api_key=stage.token(), max_retries=0) as client:
        yield client


def once_each(kinds: list[str]) -> list[str]:
    """Without repetitions in a row."""
    return [kind for before, kind in zip([None, *kinds], kinds, strict=False) if kind != before]


def streamed(stage: Stage, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream from the bytes themselves."""
    asked = {"model": "mini", "input": "Hola", "stream": True, **body}
    answer = httpx2.post(f"{stage.url}/v1/responses", json=asked, headers=stage.headers(), timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = []
    for text in answer.text.removesuffix("\n\n").split("\n\n"):
        name, data = text.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
        ResponseEvent.model_validate(events[-1])
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    return events


def test_a_real_model_answers(client: OpenAI) -> None:
    answer = client.responses.create(model="tiny", input="¿Qué tal?", max_output_tokens=8, temperature=0)
    assert (answer.object, answer.model) == ("response", "tiny")
    assert answer.status in ("completed", "incomplete")
    assert answer.usage is not None
    assert 1 <= answer.usage.output_tokens <= 8
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens


def test_it_is_the_answer_that_a_chat_gives(client: OpenAI) -> None:
    chat = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "system", "content": "Sé breve."}, {"role": "user", "content": "¿Qué tal?"}],
        max_tokens=12,
        temperature=0,
    )
    answer = client.responses.create(
        model="tiny", instructions="Sé breve.", input="¿Qué tal?", max_output_tokens=12, temperature=0
    )
    assert answer.output_text == chat.choices[0].message.content
    assert chat.usage is not None
    assert answer.usage is not None
    assert answer.usage.input_tokens == chat.usage.prompt_tokens


def test_an_answer_that_is_cut_off_is_incomplete(client: OpenAI) -> None:
    answer = client.responses.create(model="tiny", input="¿Qué tal?", max_output_tokens=2, temperature=0)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.completed_at is None


def test_the_events_of_a_text_come_in_openais_order(stage: Stage) -> None:
    events = streamed(stage)
    assert once_each([event["type"] for event in events]) == TEXT_EVENTS
    said = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    final = events[-1]["response"]
    assert final["output"][0]["content"][0]["text"] == said == "Hola, mundo!"
    assert events[-2]["item"] == final["output"][0]
    assert final["usage"]["output_tokens"] > 0


def test_the_sdks_accumulator_reads_the_stream(client: OpenAI) -> None:
    with client.responses.stream(model="mini", input="Hola") as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert snapshots[-1] == final.output_text == "Hola, mundo!"


def test_a_stream_says_the_same_as_a_whole_answer(client: OpenAI) -> None:
    params: dict[str, Any] = {"model": "tiny", "input": "¿Qué tal?", "max_output_tokens": 12, "temperature": 0}
    whole = client.responses.create(**params)
    *_, last = client.responses.create(stream=True, **params)
    assert last.response.output_text == whole.output_text
    assert last.response.usage == whole.usage
    assert last.response.status == whole.status


async def test_the_async_client_streams_too(stage: Stage) -> None:
    async with AsyncOpenAI(base_url=f"{stage.url}/v1", api_key=stage.token(), max_retries=0) as client:
        async with client.responses.stream(model="mini", input="Hola") as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_response()
        assert final.output_text == "Hola, mundo!"
        answer = await client.responses.create(model="mini", input="Hola")
        assert answer.output_text == "Hola, mundo!"


def test_log_probabilities_come_where_they_are_asked_for(client: OpenAI) -> None:
    params: dict[str, Any] = {"model": "tiny", "input": "Hola", "max_output_tokens": 4, "temperature": 0}
    include: Any = ["message.output_text.logprobs"]
    whole: Any = client.responses.create(**params, include=include, top_logprobs=2)
    logprobs = whole.output[0].content[0].logprobs
    assert len(logprobs) == whole.usage.output_tokens
    assert all(len(entry.top_logprobs) == 2 for entry in logprobs)
    *_, last = client.responses.create(**params, include=include, top_logprobs=2, stream=True)
    assert last.response.output[0].content[0].logprobs == logprobs
    plain: Any = client.responses.create(**params)
    assert plain.output[0].content[0].logprobs == []


def test_a_schema_holds_the_answer(client: OpenAI) -> None:
    class Color(BaseModel):
        color: bool

    answer = client.responses.parse(model="tiny", input="¿Rojo?", text_format=Color, max_output_tokens=64)
    assert isinstance(answer.output_parsed, Color)
    with client.responses.stream(model="tiny", input="¿Rojo?", text_format=Color, max_output_tokens=64) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_response().output_parsed, Color)


def test_json_is_asked_for_by_text_format(client: OpenAI) -> None:
    answer = client.responses.create(
        model="tiny", input="Una lista", text={"format": {"type": "json_object"}}, max_output_tokens=100, temperature=0
    )
    assert answer.text is not None
    assert answer.text.format is not None
    assert answer.text.format.type == "json_object"
    assert answer.output_text.lstrip().startswith("{")


def test_reasoning_and_calls_are_items(stage: Stage, client: OpenAI) -> None:
    stage.upstream.says = SAYS
    answer: Any = client.responses.create(model="mini", input="¿Qué tiempo hace?", tools=TOOLS)
    assert [item.type for item in answer.output] == ["reasoning", "function_call", "function_call"]
    assert answer.output[0].content[0].text == "Dos ciudades."
    assert [(call.call_id, call.name, call.arguments) for call in answer.output[1:]] == [
        ("a1", "Clima", '{"ciudad":"Lima"}'),
        ("b2", "Clima", '{"ciudad":"Quito"}'),
    ]
    assert answer.status == "completed"
    sent = stage.upstream.seen[-1].body
    assert sent["tools"][0]["function"]["name"] == "Clima"


def test_calls_and_reasoning_stream_in_openais_order(stage: Stage, client: OpenAI) -> None:
    stage.upstream.says = SAYS
    kinds = [event["type"].removeprefix("response.") for event in streamed(stage, tools=TOOLS)]
    call = [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    assert once_each(kinds) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        *call,
        *call,
        "completed",
    ]
    whole = client.responses.create(model="mini", input="Hola", tools=TOOLS)
    with client.responses.stream(model="mini", input="Hola", tools=[openai.pydantic_function_tool(Clima)]) as stream:
        for _ in stream:
            pass
        final: Any = stream.get_final_response()
    assert [item.type for item in final.output] == [item.type for item in whole.output]
    assert final.output[1].parsed_arguments == Clima(ciudad="Lima")


def test_a_refusal_is_content_of_its_own(stage: Stage, client: OpenAI) -> None:
    stage.upstream.says = {
        "message": {"role": "assistant", "content": None, "refusal": "No puedo."},
        "deltas": [{"role": "assistant", "refusal": "No "}, {"refusal": "puedo."}],
        "finish_reason": "stop",
    }
    answer: Any = client.responses.create(model="mini", input="Hola")
    assert answer.output[0].content[0].model_dump() == {"type": "refusal", "refusal": "No puedo."}
    kinds = [event["type"] for event in streamed(stage)]
    assert kinds.count("response.refusal.delta") >= 1
    assert kinds.count("response.refusal.done") == 1


def test_what_came_out_goes_in_again_with_the_results(stage: Stage, client: OpenAI) -> None:
    stage.upstream.says = SAYS
    first = client.responses.create(model="mini", input="¿Y en Lima?", tools=TOOLS)
    stage.upstream.says = None
    history: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "¿Y en Lima?"}]},
        *[item.model_dump() for item in first.output],
        {"type": "function_call_output", "call_id": "a1", "output": "19"},
        {"type": "function_call_output", "call_id": "b2", "output": [{"type": "input_text", "text": "12"}]},
    ]
    client.responses.create(model="mini", input=history, tools=TOOLS, store=False)
    sent = stage.upstream.seen[-1].body["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool"]
    assert [call["id"] for call in sent[1]["tool_calls"]] == ["a1", "b2"]
    assert [message["content"] for message in sent[2:]] == ["19", "12"]


def test_hints_are_told_of_and_echoed(stage: Stage) -> None:
    body = {
        "model": "mini",
        "input": "Hola",
        "instructions": "Sé breve.",
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"verbosity": "low"},
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "metadata": {"proyecto": "x"},
        "truncation": "disabled",
        "background": False,
        "store": False,
    }
    answer = httpx2.post(f"{stage.url}/v1/responses", json=body, headers=stage.headers(), timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-esclusa-ignored"] == (
        "include.reasoning.encrypted_content, prompt_cache_key, reasoning.effort, reasoning.summary, text.verbosity"
    )
    said = ResponseView.model_validate(answer.json())
    assert (said.instructions, said.metadata, said.text.verbosity) == ("Sé breve.", {"proyecto": "x"}, "low")
    assert said.store is False


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"background": True}, "background", "unsupported_parameter"),
        ({"truncation": "auto"}, "truncation", "unsupported_parameter"),
        ({"messages": []}, "messages", "unsupported_parameter"),
        ({"max_tokens": 5}, "max_tokens", "unsupported_parameter"),
        ({"prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "unsupported_parameter"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "x"}}, "tool_choice", "invalid_value"),
        ({"include": ["x"]}, "include.0", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": [{"type": "computer_call", "id": "x"}]}, "input.0.type", "unsupported_parameter"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "https://x.example/a"}]}]},
            "input.0.content.0",
            "url_not_allowed",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "a", "output": "1"}]},
            "input.0.call_id",
            "invalid_value",
        ),
        ({"input": [{"role": "judge", "content": "x"}]}, "input.0.role", "invalid_value"),
        (
            {"text": {"format": {"type": "json_schema", "name": "a"}}},
            "text.format.schema",
            "missing_required_parameter",
        ),
        ({"previous_response_id": "resp_x", "conversation": "conv_x"}, "previous_response_id", "invalid_value"),
    ],
)
def test_what_is_not_served_is_refused_by_name(stage: Stage, body: dict[str, Any], param: str, code: str) -> None:
    asked = {"model": "mini", "input": "Hola", **body}
    answer = httpx2.post(f"{stage.url}/v1/responses", json=asked, headers=stage.headers(), timeout=60)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code), error


def test_a_stream_that_breaks_off_ends_with_a_failed_response(stage: Stage, client: OpenAI) -> None:
    stage.upstream.mode = "die"
    events = streamed(stage)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-2]["code"] == "upstream_failed"
    failed = events[-1]["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    assert failed["x_esclusa"]["code"] == "upstream_failed"
    *_, last = client.responses.create(model="mini", input="Hola", stream=True)
    assert last.type == "response.failed"


def test_the_same_policy_limits_and_record_hold(stage: Stage) -> None:
    def asked(*roles: str, sub: str, **body: Any) -> httpx2.Response:
        headers = stage.headers(*roles, sub=sub) if roles else {"authorization": "Bearer x"}
        whole = {"model": "mini", "input": "Hola", **body}
        return httpx2.post(f"{stage.url}/v1/responses", json=whole, headers=headers, timeout=60)

    assert asked(sub="-").status_code == 401
    denied = asked("auditor", sub="u-r-auditor")
    assert (denied.status_code, denied.json()["error"]["code"]) == (403, "model_not_permitted")
    assert [asked("capped", sub="u-r-capped").status_code for _ in range(3)] == [200, 200, 429]
    answer = asked("analyst", sub="u-r-analyst", metadata={"proyecto": "x"}, tools=TOOLS)
    intent, completion = stage.records(answer.headers["x-request-id"])
    assert (intent["phase"], completion["phase"], completion["action"]) == ("intent", "completion", "chat")
    assert completion["outcome"] == "ok"
    told = json.loads(completion["rec"])
    assert told["what"]["tools"] == 1
    assert told["usage"]["tokens_out"] == answer.json()["usage"]["output_tokens"]


async def test_a_stream_that_the_process_ends_is_told_so_with_its_next_number() -> None:
    told: list[Any] = []

    async def send(message: Any) -> None:
        told.append(message)

    endpoint = CreateResponse.__new__(CreateResponse)
    endpoint._open = {}
    sent = EarlyStream(send, OPENAI, endpoint.broken_off, PING)
    await sent({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
    await sent({"type": "http.response.body", "body": b"event: response.created\n\n", "more_body": True})
    await sent.cut_short("r-1")
    name, data = told[-1]["body"].decode().strip().split("\n")
    assert (name, told[-1]["more_body"]) == ("event: error", False)
    body = ResponseEvent.model_validate_json(data.removeprefix("data: ")).root
    assert (body.type, body.code, body.sequence_number) == ("error", "gateway_stopping", 0)


@pytest.mark.parametrize(
    ("finish_reason", "stop_cause", "ending"),
    [
        ("stop", None, Ending("completed")),
        ("tool_calls", None, Ending("completed")),
        ("length", "budget", Ending("incomplete", "max_output_tokens", "budget")),
        ("length", "revoked", Ending("incomplete", "max_output_tokens", "revoked")),
        ("length", "repetition", Ending("incomplete", "max_output_tokens", "repetition")),
        ("content_filter", "guardrails", Ending("incomplete", "content_filter", "guardrails")),
    ],
)
def test_every_end_has_a_status(finish_reason: str, stop_cause: str | None, ending: Ending) -> None:
    assert Ending.of(ChoiceEnd(TextDelta(), finish_reason, stop_cause)) == ending


def test_the_tokens_of_a_prompt_are_counted_as_they_are_used(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "instructions": "Sé breve.", "input": "¿Qué tal?"}
    counted = client.responses.input_tokens.count(**asked)
    answer = client.responses.create(max_output_tokens=1, **asked)
    assert answer.usage is not None
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", answer.usage.input_tokens)
