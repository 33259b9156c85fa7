"""An engine's answer with its text read: what leaves is parts of the answer, and every token of it leaves once."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from engine.text.tool_calls.pieces import AnswerParser
from engine.text.tool_calls.tagged import TaggedCalls
from engine.text.tool_calls.thinking import Thinking
from gateway.backends.engine_dialog import ParsedAnswer
from gateway.flow.deltas import content_of
from gateway.flow.parts import ReasoningPart, TextPart, ToolCallPart
from gateway.flow.values import ChoiceEnd, Chunk, Delta, TextDelta, TokenLogprob, ToolCallDelta, Usage, UsageReport

THOUGHT_AND_CALLS = (
    "<think>\nMiro.\n</think>\n\n",
    'Voy.\n<tool_call>\n{"name": "clima", "arguments": {"ciudad": "Lima"}}\n</tool_call>\n',
    '<tool_call>\n{"name": "reloj"}\n</tool_call>',
)


class Scripted:
    """The chunks of an engine: a token a character, then the usage and the end, as the engine tells them."""

    def __init__(self, *texts: str, reason: str = "stop", choices: int = 1, last: int = 1) -> None:
        self._chunks = deque[Chunk]()
        text = "".join(texts)
        for index in range(choices):
            tokens = [TextDelta(index, sign, (ord(sign),), (logprob(sign),)) for sign in text[: len(text) - last]]
            self._chunks += tokens
            rest = text[len(text) - last :]
            if index == choices - 1:
                self._chunks.append(UsageReport(Usage(7, len(text) * choices)))
            final = TextDelta(index, rest, tuple(map(ord, rest)), tuple(map(logprob, rest)))
            self._chunks.append(ChoiceEnd(final, reason))

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        if not self._chunks:
            raise StopAsyncIteration
        return self._chunks.popleft()

    async def aclose(self) -> None:
        self._chunks.clear()

    def used(self) -> Usage:
        return Usage(7, 3)


def logprob(sign: str) -> TokenLogprob:
    return TokenLogprob(sign, ord(sign), -0.5, tuple(sign.encode()))


def parser() -> AnswerParser:
    return Thinking(TaggedCalls())


async def read(answer: Scripted, make: Callable[[], AnswerParser] = parser, **options: Any) -> list[Chunk]:
    return [chunk async for chunk in ParsedAnswer(answer, make, **options)]


def deltas(chunks: list[Chunk], index: int = 0) -> list[Delta]:
    found = [chunk.last if isinstance(chunk, ChoiceEnd) else chunk for chunk in chunks]
    return [delta for delta in found if isinstance(delta, Delta) and delta.index == index]


async def test_reasoning_text_and_calls_are_parts_of_the_answer() -> None:
    chunks = await read(Scripted(*THOUGHT_AND_CALLS))
    thought, text, first, second = content_of([delta for delta in deltas(chunks) if not delta.is_empty])
    assert (thought, text) == (ReasoningPart("Miro."), TextPart("Voy."))
    assert isinstance(first, ToolCallPart)
    assert isinstance(second, ToolCallPart)
    assert (first.name, first.arguments) == ("clima", '{"ciudad": "Lima"}')
    assert (second.name, second.arguments) == ("reloj", "{}")
    assert first.call_id != second.call_id
    assert first.call_id.startswith("call_")
    assert isinstance(chunks[-1], ChoiceEnd)
    assert chunks[-1].finish_reason == "tool_calls"


async def test_every_token_and_its_log_probability_leave_once_and_in_order() -> None:
    whole = "".join(THOUGHT_AND_CALLS)
    found = deltas(await read(Scripted(*THOUGHT_AND_CALLS, last=5)))
    assert [chr(token) for delta in found for token in delta.token_ids] == list(whole)
    assert "".join(entry.token for delta in found for entry in delta.logprobs) == whole
    assert all(len(delta.token_ids) == len(delta.logprobs) for delta in found)


@pytest.mark.parametrize(("text", "thought"), [("<think>Miro</think>Ya.", 12), ("<think>Miro", 4), ("Ya.", 0)])
async def test_reasoning_is_counted_to_the_last_token(text: str, thought: int) -> None:
    """The closing mark counts, the opening does not: its tokens are reasoning once reasoning has been seen."""
    (usage,) = [chunk.usage for chunk in await read(Scripted(text)) if isinstance(chunk, UsageReport)]
    assert usage == Usage(7, len(text), reasoning_tokens=thought)


async def test_the_choices_of_one_answer_are_read_apart() -> None:
    chunks = await read(Scripted(*THOUGHT_AND_CALLS, choices=2))
    ids = set[str | None]()
    for index in (0, 1):
        calls = [delta for delta in deltas(chunks, index) if isinstance(delta, ToolCallDelta) and delta.name]
        assert [(delta.call, delta.name) for delta in calls] == [(0, "clima"), (1, "reloj")]
        ids |= {delta.call_id for delta in calls}
    assert len(ids) == 4


async def test_only_one_call_leaves_where_one_is_asked_for() -> None:
    found = deltas(await read(Scripted(*THOUGHT_AND_CALLS), one_call=True))
    calls = [delta for delta in found if isinstance(delta, ToolCallDelta)]
    assert {delta.call for delta in calls} == {0}
    assert "".join(delta.text for delta in calls) == '{"ciudad": "Lima"}'
    assert sum(len(delta.token_ids) for delta in found) == len("".join(THOUGHT_AND_CALLS))


async def test_a_call_that_was_cut_stays_cut() -> None:
    chunks = await read(Scripted('<tool_call>{"name": "clima", "arguments": {"ciudad": "Li', reason="length"))
    assert "".join(delta.text for delta in deltas(chunks)) == '{"ciudad": "Li'
    assert isinstance(chunks[-1], ChoiceEnd)
    assert chunks[-1].finish_reason == "length"
    (named,) = [
        delta for delta in deltas(await read(Scripted('<tool_call>{"name": "f", "ar', reason="length"))) if delta.told
    ]
    assert (named.told, named.text) == ("f", "")


async def test_a_required_call_that_was_cut_before_its_name_is_no_text() -> None:
    cut = Scripted('<tool_call>\n{"name": "get_wea', reason="length")
    chunks = await read(cut, calls_only=True)
    assert [delta.told for delta in deltas(chunks) if delta.told] == []
    assert isinstance(chunks[-1], ChoiceEnd)
    assert chunks[-1].finish_reason == "length"
    assert sum(len(delta.token_ids) for delta in deltas(chunks)) == len('<tool_call>\n{"name": "get_wea')
    free = deltas(await read(Scripted('<tool_call>\n{"name": "get_wea', reason="length")))
    assert "".join(delta.told for delta in free) == '<tool_call>\n{"name": "get_wea'


async def test_text_alone_ends_as_it_did() -> None:
    chunks = await read(Scripted("Hola, <mundo>."))
    assert content_of(deltas(chunks)) == (TextPart("Hola, <mundo>."),)
    assert isinstance(chunks[-1], ChoiceEnd)
    assert chunks[-1].finish_reason == "stop"
