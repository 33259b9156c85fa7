"""Tools, reasoning and refusals of an upstream, as the OpenAI SDK reads them: whole, streamed, and sent back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.fakes.stage import Stage

ASK: list[Any] = [{"role": "user", "content": "¿Qué tiempo hace en Lima y en Quito?"}]


class Clima(BaseModel):
    """El tiempo que hace en una ciudad."""

    ciudad: str


TOOLS: list[Any] = [openai.pydantic_function_tool(Clima)]
CALLS = [
    {"id": "a1", "type": "function", "function": {"name": "Clima", "arguments": '{"ciudad":"Lima"}'}},
    {"id": "b2", "type": "function", "function": {"name": "Clima", "arguments": '{"ciudad":"Quito"}'}},
]
SAYS: dict[str, Any] = {
    "message": {"role": "assistant", "content": None, "reasoning_content": "Dos ciudades.", "tool_calls": CALLS},
    "deltas": [
        {"role": "assistant", "content": None, "reasoning_content": "Dos "},
        {"reasoning_content": "ciudades."},
        {"tool_calls": [{"index": 0, "id": "a1", "type": "function", "function": {"name": "Clima", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"ciudad":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Lima"}'}}]},
        {"tool_calls": [{"index": 1, "id": "b2", "type": "function", "function": {"name": "Clima", "arguments": ""}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": '{"ciudad":"Quito"}'}}]},
    ],
    "finish_reason": "tool_calls",
}


@pytest.fixture
def client(stage: Stage) -> Iterator[OpenAI]:
    stage.upstream.says = SAYS
    with OpenAI(base_url=f"{stage.url}/v1", api_key=stage.token(), max_retries=0) as client:
        yield client
    stage.upstream.says = None


def test_parallel_calls_come_whole(client: OpenAI) -> None:
    (choice,) = client.chat.completions.create(model="mini", messages=ASK, tools=TOOLS).choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert [call.model_dump() for call in choice.message.tool_calls or ()] == CALLS
    assert choice.message.model_extra is not None
    assert {choice.message.model_extra[name] for name in ("reasoning", "reasoning_content")} == {"Dos ciudades."}


def test_the_sdk_parses_the_arguments_by_the_tools_schema(client: OpenAI) -> None:
    answer = client.chat.completions.parse(model="mini", messages=ASK, tools=TOOLS)
    assert [call.function.parsed_arguments for call in answer.choices[0].message.tool_calls or ()] == [
        Clima(ciudad="Lima"),
        Clima(ciudad="Quito"),
    ]


def test_the_streams_helper_gathers_the_same_calls(client: OpenAI) -> None:
    with client.chat.completions.stream(model="mini", messages=ASK, tools=TOOLS) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_completion().choices[0].message
    assert kinds.count("tool_calls.function.arguments.done") == 2
    found = [
        {
            "id": call.id,
            "type": call.type,
            "function": {"name": call.function.name, "arguments": call.function.arguments},
        }
        for call in message.tool_calls or ()
    ]
    assert found == CALLS


def test_a_stream_tells_a_call_as_openai_does(stage: Stage, client: OpenAI) -> None:
    body = {"model": "mini", "messages": ASK, "tools": TOOLS, "stream": True}
    text = httpx2.post(f"{stage.url}/v1/chat/completions", json=body, headers=stage.headers()).text
    choices = [json.loads(line[6:])["choices"][0] for line in text.splitlines() if line.startswith("data: {")]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Dos ", "reasoning": "Dos "},
        {"reasoning_content": "ciudades.", "reasoning": "ciudades."},
        *SAYS["deltas"][2:],
        {},
    ]
    assert [choice["finish_reason"] for choice in choices][-2:] == [None, "tool_calls"]


def test_results_go_back_to_the_upstream_with_their_calls(stage: Stage, client: OpenAI) -> None:
    first = client.chat.completions.create(model="mini", messages=ASK, tools=TOOLS, tool_choice="required")
    assert stage.upstream.seen[-1].body["tools"] == TOOLS
    assert stage.upstream.seen[-1].body["tool_choice"] == "required"
    said = first.choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "21"} for call in said.tool_calls or ()]
    stage.upstream.says = None
    history: Any = [*ASK, said.model_dump(), *results]
    client.chat.completions.create(
        model="mini",
        messages=history,
        tools=TOOLS,
        parallel_tool_calls=False,
        tool_choice={"type": "function", "function": {"name": "Clima"}},
    )
    body = stage.upstream.seen[-1].body
    assert body["messages"] == [
        *ASK,
        {"role": "assistant", "content": None, "reasoning_content": "Dos ciudades.", "tool_calls": CALLS},
        *results,
    ]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "Clima"}}
    assert body["parallel_tool_calls"] is False


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_is_told_as_one(stage: Stage, client: OpenAI, stream: bool) -> None:
    stage.upstream.says = {
        "message": {"role": "assistant", "content": None, "refusal": "No puedo."},
        "deltas": [{"refusal": "No "}, {"refusal": "puedo."}],
        "finish_reason": "stop",
    }
    if stream:
        with client.chat.completions.stream(model="mini", messages=ASK) as events:
            message: Any = events.get_final_completion().choices[0].message
    else:
        message = client.chat.completions.create(model="mini", messages=ASK).choices[0].message
    assert message.refusal == "No puedo."
    assert not message.content


def test_tokens_of_reasoning_are_told(stage: Stage, client: OpenAI) -> None:
    stage.upstream.misreports = {
        "usage": {"prompt_tokens": 9, "completion_tokens": 30, "completion_tokens_details": {"reasoning_tokens": 12}}
    }
    usage = client.chat.completions.create(model="mini", messages=ASK, tools=TOOLS).usage
    stage.upstream.misreports = None
    assert usage is not None
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == 12
