"""Tools and thinking as Anthropic's SDK reads them: whole, streamed, sent back, and by its runner of tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic, beta_tool

from tests.fakes.stage import Stage

ASK: list[Any] = [{"role": "user", "content": "¿Qué tiempo hace en Lima y en Quito?"}]
SCHEMA = {"type": "object", "properties": {"ciudad": {"type": "string"}}, "required": ["ciudad"]}
TOOLS: list[Any] = [{"name": "clima", "description": "El tiempo de una ciudad", "input_schema": SCHEMA}]
CALLS = [
    {"id": "a1", "type": "function", "function": {"name": "clima", "arguments": '{"ciudad":"Lima"}'}},
    {"id": "b2", "type": "function", "function": {"name": "clima", "arguments": '{"ciudad":"Quito"}'}},
]
SAYS: dict[str, Any] = {
    "message": {"role": "assistant", "content": "Veamos.", "reasoning_content": "Dos ciudades.", "tool_calls": CALLS},
    "deltas": [
        {"role": "assistant", "content": None, "reasoning_content": "Dos "},
        {"reasoning_content": "ciudades."},
        {"content": "Veamos."},
        {"tool_calls": [{"index": 0, "id": "a1", "type": "function", "function": {"name": "clima", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"ciudad":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Lima"}'}}]},
        {"tool_calls": [{"index": 1, "id": "b2", "type": "function", "function": {"name": "clima", "arguments": ""}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": '{"ciudad":"Quito"}'}}]},
    ],
    "finish_reason": "tool_calls",
}
BLOCKS = [
    {"type": "thinking", "thinking": "Dos ciudades.", "signature": "unsigned"},
    {"type": "text", "text": "Veamos."},
    {"type": "tool_use", "id": "a1", "name": "clima", "input": {"ciudad": "Lima"}},
    {"type": "tool_use", "id": "b2", "name": "clima", "input": {"ciudad": "Quito"}},
]


@pytest.fixture
def client(stage: Stage) -> Iterator[Anthropic]:
    stage.upstream.says = SAYS
    with Anthropic(base_url=stage.url, api_key=stage.token(), max_retries=0) as client:
        yield client
    stage.upstream.says = None


def blocks(message: Any) -> list[dict[str, Any]]:
    return [block.to_dict() for block in message.content]


def test_calls_and_thinking_come_whole(client: Anthropic) -> None:
    message = client.messages.create(model="mini", messages=ASK, tools=TOOLS, max_tokens=64)
    assert blocks(message) == BLOCKS
    assert message.stop_reason == "tool_use"


def test_the_streams_helper_gathers_the_same_blocks(client: Anthropic) -> None:
    with client.messages.stream(model="mini", messages=ASK, tools=TOOLS, max_tokens=64) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_message()
    assert [
        {name: value for name, value in block.items() if name != "parsed_output"} for block in blocks(message)
    ] == BLOCKS
    assert message.stop_reason == "tool_use"
    assert kinds.count("content_block_stop") == 4
    assert {"thinking", "signature", "text", "input_json"} <= set(kinds)


def test_a_round_of_tools_goes_to_the_upstream_as_a_chat(stage: Stage, client: Anthropic) -> None:
    first = client.messages.create(
        model="mini", messages=ASK, tools=TOOLS, max_tokens=64, tool_choice={"type": "any"}, system="Sé breve."
    )
    sent = stage.upstream.seen[-1].body
    assert sent["tools"][0]["function"]["parameters"] == SCHEMA
    assert sent["tool_choice"] == "required"
    stage.upstream.says = None
    results: list[Any] = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "21 °C"}
        for block in first.content
        if block.type == "tool_use"
    ]
    history = [*ASK, first.to_param(), {"role": "user", "content": [*results, {"type": "text", "text": "¿Y bien?"}]}]
    answer = client.messages.create(model="mini", messages=history, tools=TOOLS, max_tokens=64)
    assert answer.content[0].type == "text"
    said = stage.upstream.seen[-1].body["messages"]
    assert [turn["role"] for turn in said] == ["user", "assistant", "tool", "tool", "user"]
    assert said[1]["reasoning_content"] == "Dos ciudades."
    assert [json.loads(call["function"]["arguments"]) for call in said[1]["tool_calls"]] == [
        {"ciudad": "Lima"},
        {"ciudad": "Quito"},
    ]
    assert said[2] == {"role": "tool", "tool_call_id": "a1", "content": "21 °C"}
    assert said[4] == {"role": "user", "content": "¿Y bien?"}


def test_the_sdks_runner_calls_the_tools_until_there_is_an_answer(stage: Stage, client: Anthropic) -> None:
    asked: list[str] = []

    @beta_tool
    def clima(ciudad: str) -> str:
        """El tiempo de una ciudad."""
        asked.append(ciudad)
        stage.upstream.says = None
        return "21 °C"

    runner = client.beta.messages.tool_runner(model="mini", messages=ASK, tools=[clima], max_tokens=64)
    answer = runner.until_done()
    assert asked == ["Lima", "Quito"]
    assert [block.text for block in answer.content if block.type == "text"] == ["Hola, mundo!"]


def test_a_choice_of_one_tool_and_of_one_call_is_passed_on(stage: Stage, client: Anthropic) -> None:
    client.messages.create(
        model="mini",
        messages=ASK,
        tools=TOOLS,
        max_tokens=64,
        tool_choice={"type": "tool", "name": "clima", "disable_parallel_tool_use": True},
    )
    sent = stage.upstream.seen[-1].body
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "clima"}}
    assert sent["parallel_tool_calls"] is False


def test_a_refusal_is_a_stop_reason(stage: Stage, client: Anthropic) -> None:
    stage.upstream.says = {
        "message": {"role": "assistant", "content": None, "refusal": "No puedo."},
        "deltas": [{"refusal": "No "}, {"refusal": "puedo."}],
        "finish_reason": "stop",
    }
    whole = client.messages.create(model="mini", messages=ASK, max_tokens=64)
    with client.messages.stream(model="mini", messages=ASK, max_tokens=64) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        assert (message.stop_reason, message.content[0].text) == ("refusal", "No puedo.")
