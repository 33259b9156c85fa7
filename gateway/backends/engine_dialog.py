"""Tools and reasoning at the engine's border: what a model may call goes in, its text comes out as deltas of parts.

Part of the local backend; imports the engine only when it is used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from gateway.backends.openai_wire import function_fields
from gateway.backends.several_prompts import OneAnswer
from gateway.errors import InvalidRequest
from gateway.flow.values import (
    ChatCount,
    ChatRequest,
    ChoiceEnd,
    Chunk,
    Delta,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
    UsageReport,
)

if TYPE_CHECKING:
    from engine import AnswerParser, CallConstraint


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation as the engine takes it."""

    token_ids: tuple[int, ...]
    grammar: Any
    """Of the calls that the answer must or may make; None where it is free, or constrained otherwise."""


JSON_ANSWERS = ("json_schema", "json_object")


def tools_for_template(request: ChatRequest) -> list[dict[str, Any]]:
    """What the chat template is told: nothing where the model must not call."""
    if request.tool_choice.mode == "none":
        return []
    return [{"type": "function", "function": function_fields(tool)} for tool in request.tools]


def prompt_of(tokenizer: Any, request: ChatRequest, messages: Sequence[Mapping[str, Any]], most: int) -> ChatPrompt:
    """Raises `InvalidRequest` for tools beside a constraint that is no JSON, and what the tokenizer raises. Takes time
    that grows with the prompt and the tools."""
    tools, opens = tools_for_template(request), not isinstance(request, ChatCount) or request.opens_answer
    ids = tuple(tokenizer.apply_chat_template(messages, opens, most, tools=tools, extra=request.template_kwargs))
    constraint = constraint_of(request) if request.runs else None
    return ChatPrompt(ids, None if constraint is None else tokenizer.call_grammar(constraint, ids))


def constraint_of(request: ChatRequest) -> CallConstraint | None:
    """The calls that an answer must or may make by their schemas; None where a model is free to write what it likes.

    Raises `InvalidRequest` for tools beside a constraint that is no JSON.
    """
    from engine import CallConstraint, Function

    choice, grammar = request.tool_choice, request.params.grammar
    if not request.tools or choice.mode == "none":
        return None
    required = choice.mode in ("required", "named")
    if not required and grammar is None and not any(tool.strict for tool in request.tools):
        return None
    answer = None
    if not required and grammar is not None:
        if grammar["type"] not in JSON_ANSWERS:
            raise InvalidRequest(
                "Tools and this constraint on the answer exclude each other.",
                code="invalid_value",
                param=request.params.grammar_param,
                hint="use `response_format` with a JSON Schema, or leave the tools out",
            )
        answer = grammar["value"] if grammar["type"] == "json_schema" else {"type": "object"}
    functions = [
        Function(tool.name, tool.parameters if required or tool.strict else None, position)
        for position, tool in enumerate(request.tools)
        if choice.mode != "named" or tool.name == choice.name
    ]
    parallel = request.parallel_tool_calls and choice.mode != "named"
    return CallConstraint(functions, required, parallel, answer)


@dataclass(slots=True)
class ReadChoice:
    """What one choice has been read as so far."""

    parser: AnswerParser
    calls: int = 0
    bare: int | None = None
    """The call that has no arguments yet."""
    thinks: bool = False


@dataclass(slots=True)
class ParsedAnswer:
    """The chunks of an engine's answer with its text read: reasoning and calls are deltas of their own.

    Tokens and log-probabilities travel with the first piece of what they have made certain, also where that is nothing
    yet. Where only one call is asked for, those after it are left out.
    """

    answer: OneAnswer
    parser: Callable[[], AnswerParser]
    one_call: bool = False
    calls_only: bool = False
    """The answer must be calls: what is held back at its end is one that was cut before it had a name, and no text."""
    _choices: dict[int, ReadChoice] = field(default_factory=dict)
    _ready: deque[Chunk] = field(default_factory=deque)
    _reasoning_tokens: int = 0
    _usage: UsageReport | None = None
    """Told with the last end, when all tokens have been read."""

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        while not self._ready:
            try:
                self._ready.extend(self._read(await self.answer.__anext__()))
            except StopAsyncIteration:
                if self._usage is None:
                    raise
                self._ready.extend(self._reported())
        return self._ready.popleft()

    async def aclose(self) -> None:
        await self.answer.aclose()

    def used(self) -> Usage:
        return replace(self.answer.used(), reasoning_tokens=self._reasoning_tokens)

    def _read(self, chunk: Chunk) -> list[Chunk]:
        match chunk:
            case ChoiceEnd(last=last):
                return self._ended(chunk, last)
            case Delta():
                choice = self._choice(chunk.index)
                return list(self._deltas(choice, chunk, choice.parser.feed(chunk.text) if chunk.text else []))
            case UsageReport():
                self._usage = chunk
                return []
        return [chunk]

    def _ended(self, end: ChoiceEnd, last: Delta) -> list[Chunk]:
        from engine import CallArguments, CallBegin, Reasoning

        choice = self._choice(last.index)
        pieces = choice.parser.feed(last.text) if last.text else []
        held_back = choice.parser.finish()
        if self.calls_only:
            held_back = [piece for piece in held_back if isinstance(piece, CallBegin | CallArguments | Reasoning)]
        pieces = [*pieces, *held_back]
        called = end.finish_reason == "stop" and choice.calls > 0
        deltas = self._deltas(choice, last, pieces, closed=called)
        reason = "tool_calls" if called else end.finish_reason
        return [*deltas[:-1], *self._reported(), replace(end, last=deltas[-1], finish_reason=reason)]

    def _reported(self) -> list[Chunk]:
        report, self._usage = self._usage, None
        return [] if report is None else [UsageReport(replace(report.usage, reasoning_tokens=self._reasoning_tokens))]

    def _choice(self, index: int) -> ReadChoice:
        found = self._choices.get(index)
        if found is None:
            found = self._choices[index] = ReadChoice(self.parser())
        return found

    def _deltas(self, choice: ReadChoice, came: Delta, pieces: list[Any], closed: bool = False) -> list[Delta]:
        """At least one, for the tokens. `closed`: no call grows any more."""
        found = [delta for piece in pieces for delta in self._delta(choice, came.index, piece)]
        if closed:
            found += _without_arguments(choice, came.index)
        if choice.thinks:
            self._reasoning_tokens += len(came.token_ids)
        if not found:
            return [TextDelta(came.index, "", came.token_ids, came.logprobs)]
        return [replace(found[0], token_ids=came.token_ids, logprobs=came.logprobs), *found[1:]]

    def _delta(self, choice: ReadChoice, index: int, piece: Any) -> list[Delta]:
        from engine import CallArguments, CallBegin, Reasoning

        choice.thinks = isinstance(piece, Reasoning)
        match piece:
            case CallBegin(call=call) | CallArguments(call=call) if self.one_call and call > 0:
                return []
            case CallBegin(call=call, name=name):
                before = _without_arguments(choice, index)
                choice.calls += 1
                choice.bare = call
                return [*before, ToolCallDelta(index, call=call, call_id=f"call_{uuid4().hex}", name=name)]
            case CallArguments(call=call, text=text):
                choice.bare = None
                return [ToolCallDelta(index, text, call=call)]
            case Reasoning(text=text):
                return [ReasoningDelta(index, text)]
        return [TextDelta(index, piece.text)]


def _without_arguments(choice: ReadChoice, index: int) -> list[Delta]:
    """Of a call that is complete without: clients read its arguments as JSON all the same."""
    call, choice.bare = choice.bare, None
    return [] if call is None else [ToolCallDelta(index, "{}", call=call)]
