"""Everything of a request that a model would read, inspected and where need be rewritten. Pure but for its time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from gateway.flow.parts import Part, ToolCallPart, ToolResultPart, rewritten, texts_of
from gateway.flow.values import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Inspection,
    Message,
    ModelRequest,
    Prompt,
    ToolSpec,
)
from gateway.guardrails.actions import GuardrailActions, Tally
from gateway.guardrails.detectors.secrets import NAME as SECRETS
from gateway.guardrails.phrases import NAME as PHRASES
from gateway.guardrails.phrases import count_phrases
from gateway.guardrails.scan import scan
from gateway.guardrails.seams import seams
from gateway.guardrails.spans import JsonText, Span, merged, without
from gateway.guardrails.timebox import Between
from gateway.guardrails.window import SLICE, Window, in_slices

Cut = Callable[[str, Iterable[Span]], str]


class Prompts:
    """One inspection of one request."""

    def __init__(self, actions: GuardrailActions, check_deadline: Between) -> None:
        self._actions = actions
        self._between = check_deadline
        self._tally = Tally("in")
        self._blocked = False
        self._redacted = False

    def inspect(self, request: ModelRequest) -> Inspection:
        """Raises `OutOfTime` through `check_deadline`."""
        texts = self._texts(request)
        for text in constraints(request):
            self._fixed(text)
        findings = self._tally.findings()
        if self._blocked:
            return Inspection("block", findings)
        if not self._redacted:
            return Inspection("allow", findings)
        return Inspection("redact", findings, replace(request, **texts))

    def _texts(self, request: ModelRequest) -> dict[str, Any]:
        """The field with the texts that a model reads, inspected and where need be rewritten."""
        match request:
            case ChatRequest(messages=messages):
                tools = tuple([self._tool(tool) for tool in request.tools])
                return {"messages": self._seams([self._message(message) for message in messages]), "tools": tools}
            case CompletionRequest(prompts=prompts):
                return {"prompts": tuple([self._prompt(prompt, "prompt") for prompt in prompts])}
            case EmbeddingRequest(inputs=inputs):
                return {"inputs": tuple([self._prompt(one, "input") for one in inputs])}

    def _tool(self, tool: ToolSpec) -> ToolSpec:
        """What describes it; its name and schema cannot be rewritten."""
        description = self._text(tool.description, "tools")
        return tool if description is tool.description else replace(tool, description=description)

    def _prompt(self, prompt: Prompt, where: str) -> Prompt:
        if isinstance(prompt, str):
            return self._text(prompt, where)
        self._unreadable()
        return prompt

    def _message(self, message: Message) -> Message:
        content = tuple([self._part(part, message.role) for part in message.content])
        if all(new is old for new, old in zip(content, message.content, strict=True)):
            content = message.content
        name = None if message.name is None else self._text(message.name, message.role)
        if content is message.content and name is message.name:
            return message
        return replace(message, content=content, name=name)

    def _part(self, part: Part, where: str) -> Part:
        """Ids and names of calls mean something to others, and cannot be rewritten; arguments stay JSON."""
        match part:
            case ToolCallPart(call_id, name, arguments):
                self._fixed(call_id, proven_only=True)
                self._fixed(name)
                cleaned = self._text(arguments, where, JsonText().without)
                return part if cleaned is arguments else replace(part, arguments=cleaned)
            case ToolResultPart(call_id):
                self._fixed(call_id, proven_only=True)
        return rewritten((part,), lambda text: self._text(text, where))[0]

    def _seams(self, messages: list[Message]) -> tuple[Message, ...]:
        """Findings that only the messages together hold."""
        texts = [text for message in messages for text in message.texts]
        if self._actions.proven is None or len(texts) < 2:
            return tuple(messages)
        roles = [message.role for message in messages for _ in message.texts]
        calls = _calls(messages)
        removed: dict[int, list[Span]] = {}
        for parts in seams(texts, roles, scan, self._between):
            span = parts[0].span
            act = self._actions.act(span)
            self._tally.span(span, act, roles[parts[0].index])
            self._blocked |= act == "block"
            if act != "flag":
                for part in parts:
                    if calls.get(part.index) == "name":
                        self._blocked |= _certain_enough(span)
                        continue
                    removed.setdefault(part.index, []).append(replace(span, start=part.start, end=part.end))
        if not removed:
            return tuple(messages)
        self._redacted = True
        cleaned = iter(
            [
                (JsonText().without if index in calls else without)(text, merged(removed[index]))
                if index in removed
                else text
                for index, text in enumerate(texts)
            ]
        )
        return tuple(
            [replace(message, content=rewritten(message.content, lambda _: next(cleaned))) for message in messages]
        )

    def _text(self, text: str, where: str, cut: Cut = without) -> str:
        """The text itself where nothing had to be replaced."""
        if self._actions.phrases is not None:
            for category, count in count_phrases(text, SLICE, self._between).items():
                self._tally.add(PHRASES, category, self._actions.phrases, certain=False, where=where, count=count)
                self._blocked |= self._actions.phrases == "block"
        if self._actions.proven is None:
            return text
        pieces, changed = [], False
        for done in in_slices(Window(scan), text, self._between, last=True):
            removed = []
            for span in done.spans:
                act = self._actions.act(span)
                self._tally.span(span, act, where)
                self._blocked |= act == "block"
                if act != "flag":
                    removed.append(span)
            pieces.append(cut(done.text, removed))
            changed |= bool(removed)
        self._redacted |= changed
        return "".join(pieces) if changed else text

    def _fixed(self, text: str, *, proven_only: bool = False) -> None:
        """Stop strings, constraints on the answer, and ids and names of calls cannot be rewritten: what would have to
        be, refuses. What only looks like a password is left; of ids all that only looks like something: of random
        ones a few in ten thousand do."""
        if self._actions.proven is None:
            return
        for done in in_slices(Window(scan), text, self._between, last=True):
            for span in done.spans:
                if proven_only and not span.certain:
                    continue
                refuse = self._actions.rewrites and _certain_enough(span)
                self._tally.span(span, "block" if refuse else "flag", "parameters")
                self._blocked |= refuse

    def _unreadable(self) -> None:
        """A prompt of token ids: only the model's tokenizer could read it."""
        self._tally.not_inspected("prompt", "block" if self._actions.closed else "flag")
        self._blocked |= self._actions.closed


def _certain_enough(span: Span) -> bool:
    """To refuse for it: schemas and functions name their fields so."""
    return span.certain or span.detector != SECRETS


def _calls(messages: Iterable[Message]) -> dict[int, str]:
    """Which of all texts of the messages are names and arguments of calls."""
    found, index = dict[int, str](), 0
    for message in messages:
        for part in message.content:
            if isinstance(part, ToolCallPart):
                found |= {index: "name", index + 1: "arguments"}
            index += len(texts_of((part,)))
    return found


def constraints(request: ModelRequest) -> Iterator[str]:
    params = request.params
    yield from params.stop
    yield from params.bad_words
    if params.grammar is not None:
        yield json.dumps(params.grammar["value"], ensure_ascii=False)
        yield str(params.grammar.get("description", ""))
    if isinstance(request, ChatRequest):
        for tool in request.tools:
            yield tool.name
            yield tool.parameters_json
