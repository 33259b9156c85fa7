"""Deltas of an answer: one row a kind; together they make the parts of the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.api.render import ChatFormat, ChoiceBuffer, collect
from gateway.api.text_offsets import TextOffsets
from gateway.flow.deltas import DELTAS, ReasoningDelta, RefusalDelta, ToolCallDelta, content_of
from gateway.flow.metering import Meter
from gateway.flow.parts import ReasoningPart, TextPart, ToolCallPart
from gateway.flow.values import ChoiceEnd, Chunk, Delta, Obligations, TextDelta
from gateway.guardrails.actions import actions_of
from gateway.guardrails.answers import AnswerGuard
from gateway.guardrails.timebox import Timebox
from tests.fakes.parts import Bench

CALLS: list[Delta] = [
    ReasoningDelta(text="Mejor "),
    ReasoningDelta(text="busco."),
    TextDelta(text="Un "),
    TextDelta(text="momento."),
    ToolCallDelta(call=0, call_id="a", name="find", text='{"q":'),
    ToolCallDelta(call=0, text="1}"),
    ToolCallDelta(call=1, call_id="b", name="find", text="{}"),
]


@pytest.fixture
async def timebox() -> AsyncIterator[Timebox]:
    box = Timebox(timeout_s=5, workers=1)
    yield box
    box.close()


def test_every_kind_of_delta_has_its_row() -> None:
    assert {kind.__name__ for kind in DELTAS} == {kind.__name__ for kind in Delta.__subclasses__()}


def test_deltas_of_one_part_are_joined() -> None:
    assert content_of(CALLS) == (
        ReasoningPart("Mejor busco."),
        TextPart("Un momento."),
        ToolCallPart("a", "find", '{"q":1}'),
        ToolCallPart("b", "find", "{}"),
    )
    assert content_of([]) == (TextPart(""),)


def test_a_whole_answer_tells_each_part_in_its_field() -> None:
    choices = [ChoiceBuffer()]
    said: list[Chunk] = [*CALLS[:-1], ChoiceEnd(CALLS[-1], "tool_calls")]
    for chunk in said:
        collect(choices, chunk)
    whole = ChatFormat().whole(0, choices[0])
    assert whole["finish_reason"] == "tool_calls"
    assert whole["message"] == {
        "role": "assistant",
        "content": "Un momento.",
        "refusal": None,
        "reasoning_content": "Mejor busco.",
        "reasoning": "Mejor busco.",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "find", "arguments": '{"q":1}'}},
            {"id": "b", "type": "function", "function": {"name": "find", "arguments": "{}"}},
        ],
    }


@pytest.mark.parametrize(
    ("delta", "fields"),
    [
        (TextDelta(text="a"), {"content": "a"}),
        (ReasoningDelta(text="a"), {"reasoning_content": "a", "reasoning": "a"}),
        (RefusalDelta(text="a"), {"refusal": "a"}),
        (
            ToolCallDelta(call=1, call_id="x", name="find", text=""),
            {
                "tool_calls": [
                    {"index": 1, "id": "x", "type": "function", "function": {"name": "find", "arguments": ""}}
                ]
            },
        ),
        (
            ToolCallDelta(call=1, text="{}"),
            {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
        ),
    ],
)
def test_a_frame_tells_a_delta_in_its_field(delta: Delta, fields: dict[str, Any]) -> None:
    assert ChatFormat().delta(delta, None, TextOffsets())["delta"] == fields


def test_every_token_counts_whatever_it_says() -> None:
    meter = Meter()
    for delta in (TextDelta(0, "a", (1,)), ReasoningDelta(0, "b", (2, 3)), ToolCallDelta(0, "c", (4,))):
        meter.take(delta)
    assert meter.tokens == {0: 4}


async def test_a_part_that_ends_lets_go_of_what_was_held_of_it_and_no_word_runs_over(timebox: Timebox) -> None:
    actions = actions_of(Obligations(redaction="redact"))
    assert actions is not None
    guard = AnswerGuard(actions, timebox)
    said: list[Chunk] = [
        ReasoningDelta(text="DNI 3679"),
        ReasoningDelta(text="6476H"),
        TextDelta(text="mi DNI es 367"),
        ToolCallDelta(call_id="a", name="find", text='{"nif":"36796476H'),
        ChoiceEnd(ToolCallDelta(text='"}'), "tool_calls"),
    ]
    heard = [piece for chunk in said for piece in await guard.check(chunk)]
    deltas = [piece.last if isinstance(piece, ChoiceEnd) else piece for piece in heard]
    assert content_of([one for one in deltas if isinstance(one, Delta)]) == (
        ReasoningPart("DNI [ES_NIF]"),
        TextPart("mi DNI es 367"),
        ToolCallPart("a", "find", '{"nif":"[ES_NIF]"}'),
    )
    assert isinstance(heard[-1], ChoiceEnd)
    assert [found.category for found in guard.findings] == ["es_nif"]


async def test_one_token_is_one_object_for_the_caller() -> None:
    bench = Bench()
    async with await bench.pipeline().answer(bench.incoming()) as answer:
        chunks = [chunk async for chunk in answer]
    assert [type(chunk) for chunk in chunks] == [TextDelta, TextDelta, TextDelta, ChoiceEnd]
    assert bench.completion.usage.completion_tokens == 3
