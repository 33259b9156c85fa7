"""Tools in a chat's body: what a caller may offer and choose, and histories with calls, written here or elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.api import chat
from gateway.errors import InvalidRequest
from gateway.flow.parts import ReasoningPart, RefusalPart, TextPart, ToolCallPart, ToolResultPart
from gateway.flow.tools import AUTO, ToolChoice, ToolSpec
from gateway.flow.values import ChatRequest

PNG = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
URL = {"type": "image_url", "image_url": {"url": "https://x.example"}}
REFUSAL = {"type": "refusal", "refusal": "x"}
USER = {"role": "user", "content": "¿Qué tiempo hace en Lima?"}
SCHEMA = {"type": "object", "properties": {"ciudad": {"type": "string"}}, "required": ["ciudad"]}
FUNCTION = {"name": "clima", "description": "El tiempo que hace", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
OTHER = {"type": "function", "function": {"name": "reloj"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "clima", "arguments": '{"ciudad":"Lima"}'}}
ODD = CALL | {"id": "con espacio"}
ASKED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "21 grados"}


def parsed(*messages: Any, **fields: Any) -> ChatRequest:
    found = chat.parse({"model": "mini", "messages": list(messages) or [USER], **fields})
    assert isinstance(found, ChatRequest)
    return found


def refused(*messages: Any, **fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parsed(*messages, **fields)
    return caught.value


def test_a_tool_is_name_description_and_schema() -> None:
    request = parsed(tools=[TOOL, OTHER])
    assert request.tools == (ToolSpec("clima", "El tiempo que hace", SCHEMA), ToolSpec("reloj"))
    assert (request.tool_choice, request.parallel_tool_calls) == (AUTO, True)


@pytest.mark.parametrize(
    ("choice", "meant"),
    [
        (None, AUTO),
        ("auto", AUTO),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "function": {"name": "clima"}}, ToolChoice("named", "clima")),
    ],
)
def test_the_choice_says_whether_a_tool_must_be_called(choice: Any, meant: ToolChoice) -> None:
    assert parsed(tools=[TOOL], tool_choice=choice).tool_choice == meant


def test_allowed_tools_are_those_that_may_be_called() -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "reloj"}}]}
    request = parsed(tools=[TOOL, OTHER], tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert (request.tools, request.tool_choice) == ((ToolSpec("reloj"),), ToolChoice("required"))


def test_without_tools_a_choice_that_asks_for_nothing_is_accepted() -> None:
    assert parsed(tools=[], tool_choice="auto", parallel_tool_calls=True) == parsed()
    assert parsed(tool_choice="none").tools == ()


def test_strictness_and_one_call_at_a_time_are_kept() -> None:
    request = parsed(tools=[{"type": "function", "function": FUNCTION | {"strict": True}}], parallel_tool_calls=False)
    assert request.tools[0].strict
    assert not request.parallel_tool_calls


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
            "invalid_value",
        ),
        ({"tools": [TOOL, TOOL]}, "tools.1.function.name", "invalid_value"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "unsupported_parameter"),
        ({"tools": [TOOL, {"type": "mcp", "server_label": "x"}]}, "tools.1.type", "unsupported_parameter"),
        ({"tools": [{"type": "function"}]}, "tools.0.function", "missing_required_parameter"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name", "invalid_value"),
        ({"tools": [TOOL] * 257}, "tools", "invalid_value"),
        ({"tools": "clima"}, "tools", "invalid_type"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls", "invalid_type"),
        ({"functions": [FUNCTION]}, "functions", "unsupported_parameter"),
    ],
)
def test_what_cannot_be_offered_is_refused_with_its_place(fields: Any, param: str, code: str) -> None:
    error = refused(**fields)
    assert (error.status, error.param, error.code) == (400, param, code)


def test_a_schema_that_is_too_deep_is_refused_by_its_tool() -> None:
    deep: dict[str, Any] = {}
    for _ in range(60):
        deep = {"items": deep}
    error = refused(tools=[OTHER, {"type": "function", "function": {"name": "b", "parameters": deep}}])
    assert (error.code, error.param) == ("schema_too_complex", "tools.1.function.parameters")


def test_a_conversation_with_a_call_and_its_result_becomes_parts() -> None:
    request = parsed(USER, ASKED, RESULT, tools=[TOOL])
    assert [message.content for message in request.messages[1:]] == [
        (ToolCallPart("call_1", "clima", '{"ciudad":"Lima"}'),),
        (ToolResultPart("call_1", "21 grados"),),
    ]


@pytest.mark.parametrize(
    ("assistant", "parts"),
    [
        ({"content": "x", "annotations": [], "tool_calls": [], "refusal": None, "audio": None}, (TextPart("x"),)),
        ({"content": "x", "annotations": [{"type": "url_citation", "url_citation": {}}]}, (TextPart("x"),)),
        ({"content": []}, (TextPart(""),)),
        ({"content": None}, (TextPart(""),)),
        ({"content": ""}, (TextPart(""),)),
        ({}, (TextPart(""),)),
        ({"content": None, "refusal": "No puedo."}, (RefusalPart("No puedo."),)),
        ({"content": [{"type": "refusal", "refusal": "No."}]}, (RefusalPart("No."),)),
        ({"content": "x", "reasoning_content": "pienso"}, (ReasoningPart("pienso"), TextPart("x"))),
        ({"content": "x", "reasoning": "pienso"}, (ReasoningPart("pienso"), TextPart("x"))),
        ({"content": "x", "id": "msg_1", "function_call": None, "provider_specific_fields": None}, (TextPart("x"),)),
        ({"content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}, (TextPart("x"),)),
        (
            {"content": "voy", "tool_calls": [CALL | {"index": 0}]},
            (TextPart("voy"), ToolCallPart("call_1", "clima", '{"ciudad":"Lima"}')),
        ),
    ],
)
def test_an_earlier_answer_written_elsewhere_is_understood(assistant: Any, parts: Any) -> None:
    assert parsed(USER, {"role": "assistant", **assistant}, USER).messages[1].content == parts


@pytest.mark.parametrize(
    ("messages", "param", "code"),
    [
        ([USER, RESULT], "messages.1.tool_call_id", "invalid_value"),
        ([USER, ASKED, {"role": "tool", "content": "x"}], "messages.2.tool_call_id", "missing_required_parameter"),
        ([USER, ASKED, RESULT | {"content": None}], "messages.2.content", "missing_required_parameter"),
        ([{"role": "user"}], "messages.0.content", "missing_required_parameter"),
        ([{"role": "user", "content": []}], "messages.0.content", "invalid_value"),
        ([{"role": "user", "content": "x", "tool_calls": [CALL]}], "messages.0.tool_calls", "invalid_value"),
        ([{"role": "user", "content": [REFUSAL]}], "messages.0.content.0.type", "invalid_value"),
        ([{"role": "user", "content": [{"type": "video"}]}], "messages.0.content.0.type", "invalid_value"),
        ([{"role": "user", "content": [PNG]}], "messages.0.content.0", "unsupported_parameter"),
        ([{"role": "user", "content": [URL]}], "messages.0.content.0", "url_not_allowed"),
        ([USER, {"role": "assistant", "tool_calls": [ODD]}], "messages.1.tool_calls.0.id", "invalid_value"),
        ([USER, {"role": "function", "name": "clima", "content": "x"}], "messages.1.role", "invalid_value"),
    ],
)  # fmt: skip
def test_a_message_that_no_model_takes_is_refused_with_its_place(messages: Any, param: str, code: str) -> None:
    error = refused(*messages)
    assert (error.status, error.param, error.code) == (400, param, code)


def test_an_unknown_type_of_content_is_told_only_what_is_served() -> None:
    message = refused({"role": "user", "content": [{"type": "video"}]}).message
    assert "'text'" in message
    assert "image_url" not in message
