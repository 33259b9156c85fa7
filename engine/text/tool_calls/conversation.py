"""Conversations with tools as chat templates expect them, and for templates that know no tools.

Templates take the arguments of a call as an object, not as JSON in a text (Hugging Face's convention). A model whose
template has no place for tools is told them, their calls and their results in words, in the Hermes format. Clients send
histories as OpenAI takes them, of any model; what one template takes of them only in another form is written so.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = Mapping[str, Any]
MAX_DEPTH = 64
"""Levels of the arguments of a call that are told as an object."""
PREAMBLE = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


@dataclass(frozen=True, slots=True)
class Habits:
    """What one template demands of a conversation, besides the usual."""

    short_ids: bool = False
    """Ids of calls have nine letters and digits (Mistral)."""
    single_calls: bool = False
    """An answer holds one call at most (Llama 3)."""
    thinking: bool = False
    """Reasoning is called `thinking` (gpt-oss)."""


def habits_of(template: str) -> Habits:
    return Habits(
        short_ids=re.search(r"id\s*\|\s*length\s*(!=|<)\s*9", template) is not None,
        single_calls="only supports single tool-calls at once" in template,
        thinking="message.thinking" in template,
    )


USUAL = Habits()


def for_template(messages: Sequence[Message], habits: Habits = USUAL) -> list[dict[str, Any]]:
    """No content is an empty text, and arguments are objects where they are JSON of one."""
    found = list[dict[str, Any]]()
    for message in _one_call_each(messages) if habits.single_calls else messages:
        turn = dict(message)
        if habits.thinking and turn.get("reasoning_content") and not (turn.get("content") and turn.get("tool_calls")):
            turn["thinking"] = turn["reasoning_content"]
        if habits.short_ids and turn.get("tool_call_id"):
            turn["tool_call_id"] = _short(turn["tool_call_id"])
        turn["content"] = _text_in(turn.get("content"))
        if turn.get("tool_calls"):
            calls = [_with_object(call) for call in turn["tool_calls"]]
            turn["tool_calls"] = [{**call, "id": _short(call["id"])} for call in calls] if habits.short_ids else calls
        found.append(turn)
    return found


def in_words(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same conversation without fields that only templates with tools read."""
    turns = list[dict[str, Any]]()
    for message in messages:
        turn = _told(message)
        if turns and message.get("role") == "tool" and turns[-1].get("role") == "user":
            # Results of several calls come together: some templates want users and assistants in turn.
            turn = {**turn, "content": f"{turns.pop()['content']}\n{turn['content']}"}
        turns.append(turn)
    if not tools:
        return turns
    told = PREAMBLE.format(tools="\n".join([json.dumps(tool, ensure_ascii=False) for tool in tools]))
    if turns and turns[0].get("role") == "system":
        first = {**turns[0], "content": f"{turns[0].get('content') or ''}\n\n{told}".lstrip()}
        return [first, *turns[1:]]
    return [{"role": "system", "content": told}, *turns]


def to_user(turns: Sequence[Message]) -> list[dict[str, Any]]:
    """For templates without a system's message: it stands before what the user says first."""
    first, second = dict(turns[0]), dict(turns[1]) if len(turns) > 1 else {"role": "user", "content": ""}
    if first.get("role") != "system" or second.get("role") != "user":
        return [dict(turn) for turn in turns]
    second["content"] = f"{first['content']}\n\n{second['content']}".rstrip()
    return [second, *[dict(turn) for turn in turns[2:]]]


def _one_call_each(messages: Sequence[Message]) -> Iterator[Message]:
    """Several calls of one answer as answers of their own, each before its result."""
    waiting = dict[str, Message]()
    for message in messages:
        if message.get("role") == "tool" and waiting:
            yield from _called(waiting, str(message.get("tool_call_id")))
        else:
            yield from waiting.values()
            waiting = {}
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            yield message
            continue
        alone = [{**message, "tool_calls": [call]} for call in calls]
        for later in alone[1:]:
            later["content"] = ""
            later.pop("reasoning_content", None)
        waiting = {str(call.get("id")): one for call, one in zip(calls, alone, strict=True)}
    yield from waiting.values()


def _called(waiting: dict[str, Message], call_id: str) -> Iterator[Message]:
    if call_id in waiting:
        yield waiting.pop(call_id)


def _text_in(content: Any) -> Any:
    """Parts that are texts as one, which every template reads; none is an empty text."""
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        return "\n".join([part["text"] for part in content])
    return "" if content is None else content


def _short(call_id: str) -> str:
    """Nine letters and digits; the same for the same id."""
    return call_id if re.fullmatch("[A-Za-z0-9]{9}", call_id) else hashlib.sha256(call_id.encode()).hexdigest()[:9]


def _with_object(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        function["arguments"] = object_in(arguments)
    return {**call, "function": function}


def object_in(arguments: str) -> Any:
    """An object, or the text itself where it is none or nests too deeply: a model may have written anything."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) and not _is_deep(value) else arguments


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = [item.values() if isinstance(item, dict) else item for item in level]
        level = [one for items in inner for one in items if isinstance(one, dict | list)]
        if not level:
            return False
    return True


def _told(message: Message) -> dict[str, Any]:
    calls = message.get("tool_calls")
    role, content = message.get("role"), _text_in(message.get("content"))
    if role == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    if not calls:
        return {**{name: value for name, value in message.items() if name != "tool_calls"}, "content": content}
    written = [
        "<tool_call>\n"
        + json.dumps(
            {"name": call["function"]["name"], "arguments": object_in(call["function"].get("arguments") or "")},
            ensure_ascii=False,
        )
        + "\n</tool_call>"
        for call in calls
    ]
    return {"role": "assistant", "content": "\n".join([content, *written] if content else written)}
