"""A message, or the delta of a stream's event, as deltas of ours: text, reasoning, refusals and calls. Pure.

Servers differ in what they leave out: the number of a call, its id, its arguments as text. What is missing is filled
in here, so that a caller always gets calls that OpenAI's clients can read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import orjson

from gateway.flow.values import Delta, ReasoningDelta, RefusalDelta, TextDelta, TokenLogprob, ToolCallDelta

MAX_CALLS = 1024
"""Of one choice; more are nonsense."""
MAX_NAME = 256
"""Characters of a function's name or a call's id."""


@dataclass(slots=True)
class ChoiceCalls:
    """Which calls a choice has made so far, by the number that the server gives them."""

    numbers: dict[int, int] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    """The server's number of each id."""
    named: set[int] = field(default_factory=set)

    def number(self, given: Any, call_id: str | None, name: str | None) -> int:
        """Ours for a piece: by the server's number; without one by the id, or a new call where it has an id that is
        not known or a name, else the latest."""
        if given is None:
            latest = max(self.numbers, default=-1)
            begins = call_id is not None or name is not None or latest < 0
            key = self.ids.get(call_id or "", latest + 1 if begins else latest)
        elif type(given) is int and 0 <= given < MAX_CALLS:
            key = given
        else:
            raise ValueError("not the number of a call")
        if key not in self.numbers and len(self.numbers) >= MAX_CALLS:
            raise ValueError("too many calls")
        if call_id is not None:
            self.ids.setdefault(call_id, key)
        return self.numbers.setdefault(key, len(self.numbers))


def deltas_of(
    fields: Mapping[str, Any],
    index: int,
    calls: ChoiceCalls,
    logprobs: tuple[TokenLogprob, ...] = (),
    *,
    whole: bool = False,
) -> list[Delta]:
    """In the order in which a model writes them; of a whole message each entry is a call. Raises one of `MISSHAPEN`
    for what is no message."""
    found = list[Delta]()
    reasoning = text_of(fields.get("reasoning_content")) or text_of(fields.get("reasoning"))
    if reasoning:
        found.append(ReasoningDelta(index, reasoning))
    if (text := text_of(fields.get("content"))) or logprobs:
        found.append(TextDelta(index, text or "", logprobs=logprobs))
    if refusal := text_of(fields.get("refusal")):
        found.append(RefusalDelta(index, refusal))
    for position, call in enumerate(fields.get("tool_calls") or ()):
        found.append(_call(call, index, calls, position if whole else call.get("index")))
    if legacy := fields.get("function_call"):
        found.append(_call({"function": legacy}, index, calls, 0))
    return found


def text_of(value: Any) -> str | None:
    """A text, also where it is a list of parts. Raises `TypeError` for anything else."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join([_part(part) for part in value])
    raise TypeError("not a text")


def _part(part: Any) -> str:
    if isinstance(part, dict) and isinstance(text := part.get("text", ""), str):
        return text
    raise TypeError("not a part with a text")


def _call(call: Mapping[str, Any], index: int, calls: ChoiceCalls, given: Any) -> ToolCallDelta:
    function = call.get("function") or {}
    call_id, name = _short(call.get("id")), _short(function.get("name"))
    number = calls.number(given, call_id, name)
    arguments = _arguments(function.get("arguments"))
    if number in calls.named:
        return ToolCallDelta(index, arguments, call=number)
    calls.named.add(number)
    return ToolCallDelta(index, arguments, call=number, call_id=call_id or f"call_{uuid4().hex}", name=name or "")


def _arguments(value: Any) -> str:
    if isinstance(value, dict):
        return orjson.dumps(value).decode()
    return text_of(value) or ""


def _short(value: Any) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, str) and len(value) <= MAX_NAME:
        return value
    raise ValueError("not a name")


def joined_reason(reason: str, calls: ChoiceCalls) -> str:
    """A choice that has called something ends in calls, whatever some servers say."""
    return "tool_calls" if reason == "stop" and calls.numbers else reason
