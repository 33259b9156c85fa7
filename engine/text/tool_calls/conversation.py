"""Conversations with tools as chat templates expect them, and for templates that know no tools.

Templates take the arguments of a call as an object, not as JSON in a text (Hugging Face's convention). A model whose
template has no place for tools is told them, their calls and their results in words, in the Hermes format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
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


def for_template(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """No content is an empty text, and arguments are objects where they are JSON of one."""
    found = []
    for message in messages:
        turn = dict(message)
        if turn.get("content") is None:
            turn["content"] = ""
        if turn.get("tool_calls"):
            turn["tool_calls"] = [_with_object(call) for call in turn["tool_calls"]]
        found.append(turn)
    return found


def in_words(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same conversation without fields that only templates with tools read."""
    turns = [_told(message) for message in messages]
    if not tools:
        return turns
    told = PREAMBLE.format(tools="\n".join([json.dumps(tool, ensure_ascii=False) for tool in tools]))
    if turns and turns[0].get("role") == "system":
        first = {**turns[0], "content": f"{turns[0].get('content') or ''}\n\n{told}".lstrip()}
        return [first, *turns[1:]]
    return [{"role": "system", "content": told}, *turns]


def _with_object(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        function["arguments"] = object_in(arguments)
    return {**call, "function": function}


def object_in(arguments: str) -> Any:
    """An object, or the text itself where it is none: a model may have written anything."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _told(message: Message) -> dict[str, Any]:
    calls = message.get("tool_calls")
    role, content = message.get("role"), message.get("content") or ""
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
