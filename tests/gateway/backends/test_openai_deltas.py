"""Messages of other servers: what they leave out of a call is filled in, and nothing that a model wrote is lost."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.backends.openai_deltas import MAX_CALLS, ChoiceCalls, deltas_of, joined_reason
from gateway.flow.deltas import content_of
from gateway.flow.parts import TextPart, ToolCallPart
from gateway.flow.values import Delta, ToolCallDelta


def read(*pieces: dict[str, Any]) -> list[Delta]:
    calls = ChoiceCalls()
    return [delta for piece in pieces for delta in deltas_of(piece, 0, calls)]


def call(**fields: Any) -> dict[str, Any]:
    return {"tool_calls": [fields]}


def test_calls_without_numbers_are_told_apart_by_their_ids() -> None:
    found = read(
        call(id="a", function={"name": "f", "arguments": '{"x"'}),
        call(function={"arguments": ":1}"}),
        call(id="b", function={"name": "f", "arguments": "{}"}),
    )
    assert content_of(found) == (ToolCallPart("a", "f", '{"x":1}'), ToolCallPart("b", "f", "{}"))


def test_calls_without_numbers_and_ids_are_told_apart_by_their_names() -> None:
    found = read(
        call(function={"name": "f", "arguments": '{"x"'}),
        call(function={"arguments": ":1}"}),
        call(function={"name": "f", "arguments": "{}"}),
    )
    assert [part.arguments for part in content_of(found) if isinstance(part, ToolCallPart)] == ['{"x":1}', "{}"]


def test_an_id_that_comes_again_without_a_number_is_the_same_call() -> None:
    piece = {"id": "a", "function": {"name": "f", "arguments": "1"}}
    assert content_of(read(call(**piece), call(**piece))) == (ToolCallPart("a", "f", "11"),)


@pytest.mark.parametrize("named", [{}, {"id": "a"}, {"index": 0}])
def test_each_entry_of_a_whole_message_is_a_call(named: dict[str, Any]) -> None:
    message = {"tool_calls": [{**named, "function": {"name": "f", "arguments": "1"}} for _ in range(2)]}
    found = content_of(deltas_of(message, 0, ChoiceCalls(), whole=True))
    assert [part.arguments for part in found if isinstance(part, ToolCallPart)] == ["1", "1"]


def test_a_call_without_an_id_gets_one_of_its_own() -> None:
    first, second = read(
        {"tool_calls": [{"index": 0, "function": {"name": "f"}}, {"index": 1, "function": {"name": "g"}}]}
    )
    assert isinstance(first, ToolCallDelta)
    assert isinstance(second, ToolCallDelta)
    assert str(first.call_id).startswith("call_")
    assert first.call_id != second.call_id


def test_calls_that_grow_in_turns_stay_whole() -> None:
    found = read(
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "1"}}]},
        {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "g", "arguments": "2"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "3"}}, {"index": 1, "function": {"arguments": "4"}}]},
    )
    assert content_of(found) == (ToolCallPart("a", "f", "13"), ToolCallPart("b", "g", "24"))


def test_a_name_that_comes_again_names_no_second_call() -> None:
    piece = {"index": 0, "id": "a", "function": {"name": "f", "arguments": "1"}}
    assert content_of(read({"tool_calls": [piece]}, {"tool_calls": [piece]})) == (ToolCallPart("a", "f", "11"),)


@pytest.mark.parametrize("first", [1, 7])
def test_numbers_that_do_not_begin_at_zero_become_ours(first: int) -> None:
    (found,) = read(call(index=first, id="a", function={"name": "f"}))
    assert isinstance(found, ToolCallDelta)
    assert found.call == 0


def test_arguments_may_be_an_object() -> None:
    assert content_of(read(call(id="a", function={"name": "f", "arguments": {"ñ": 1}}))) == (
        ToolCallPart("a", "f", '{"ñ":1}'),
    )


def test_the_older_call_of_a_function_is_a_call() -> None:
    assert [type(one) for one in read({"function_call": {"name": "f", "arguments": "{}"}})] == [ToolCallDelta]


def test_content_in_parts_is_text() -> None:
    assert content_of(read({"content": [{"type": "text", "text": "uno "}, {"type": "text", "text": "dos"}]})) == (
        TextPart("uno dos"),
    )


def test_the_parts_of_one_message_come_as_a_model_writes_them() -> None:
    message = {"content": "t", "refusal": "r", "reasoning": "p", "tool_calls": [{"id": "a", "function": {"name": "f"}}]}
    assert [type(one).__name__ for one in read(message)] == [
        "ReasoningDelta",
        "TextDelta",
        "RefusalDelta",
        "ToolCallDelta",
    ]


@pytest.mark.parametrize(
    "piece",
    [
        {"content": 7},
        {"content": [7]},
        {"tool_calls": [7]},
        call(index=-1),
        call(index=10**6),
        call(index="0"),
        call(id="x" * 300),
        call(id="a", function={"name": ["f"]}),
        call(id="a", function={"name": "f", "arguments": 3}),
    ],
)
def test_what_is_no_message_is_not_read_as_one(piece: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError)):
        read(piece)


@pytest.mark.parametrize(
    ("said", "called", "told"), [("stop", True, "tool_calls"), ("length", True, "length"), ("stop", False, "stop")]
)
def test_a_choice_that_has_called_something_ends_in_calls(said: str, called: bool, told: str) -> None:
    calls = ChoiceCalls()
    if called:
        deltas_of(call(id="a", function={"name": "f"}), 0, calls)
    assert joined_reason(said, calls) == told


def test_the_last_call_that_fits_may_grow() -> None:
    pieces = [call(index=number, id=f"c{number}", function={"name": "f"}) for number in range(MAX_CALLS)]
    found = read(*pieces, call(index=0, function={"arguments": "{}"}))
    assert content_of(found)[0] == ToolCallPart("c0", "f", "{}")
    with pytest.raises(ValueError, match="too many"):
        read(*pieces, call(id="x"))


def test_a_call_without_a_number_is_none_of_those_with_one() -> None:
    found = read(call(index=1, id="a", function={"name": "f"}), call(id="b", function={"name": "g"}))
    assert content_of(found) == (ToolCallPart("a", "f", ""), ToolCallPart("b", "g", ""))
