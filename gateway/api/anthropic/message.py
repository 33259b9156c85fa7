"""An answer as Anthropic's message object. Pure.

A refusal is a block of text, as there; what the model thought is a block of `thinking`. Its signature is a constant:
nothing is sealed, and what comes back in a history is read as text.
"""

from __future__ import annotations

from typing import Any

import orjson

from gateway.api.headers import tells_cached_tokens
from gateway.api.render import ChoiceBuffer, extension
from gateway.flow.answer import Bill
from gateway.flow.deltas import content_of
from gateway.flow.parts import Part, ReasoningPart, RefusalPart, TextPart, ToolCallPart
from gateway.flow.stages import Reserved
from gateway.flow.values import ChoiceEnd, Usage

SIGNATURE = "unsigned"
STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
    "abort": "max_tokens",
}


def message_object(reserved: Reserved, bill: Bill, choice: ChoiceBuffer, end: ChoiceEnd | None) -> dict[str, Any]:
    parts = content_of(choice.deltas)
    body = opening(reserved)
    body["content"] = [block(part) for part in parts if not (isinstance(part, TextPart) and not part.text)]
    body |= stop_fields(reserved, end, refused=any(isinstance(part, RefusalPart) for part in parts))
    body["usage"] = usage_object(reserved, bill.usage)
    body["x_esclusa"] = extension(reserved, bill, end.stop_cause if end is not None else None)
    return body


def opening(reserved: Reserved) -> dict[str, Any]:
    """The message before anything of it is known but who speaks."""
    return {
        "id": f"msg_{reserved.request_id.hex}",
        "type": "message",
        "role": "assistant",
        "model": reserved.served.id,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage_object(reserved, known_at_start(reserved)),
    }


def known_at_start(reserved: Reserved) -> Usage:
    """An exact count of the prompt, or nothing; the end of a stream has the last word."""
    return Usage(reserved.estimate.prompt_tokens if reserved.estimate.exact else 0)


def block(part: Part) -> dict[str, Any]:
    match part:
        case ReasoningPart(text=text):
            return {"type": "thinking", "thinking": text, "signature": SIGNATURE}
        case ToolCallPart():
            return {"type": "tool_use", "id": part.call_id, "name": part.name, "input": input_of(part.arguments)}
        case TextPart(text=text) | RefusalPart(text=text):
            return {"type": "text", "text": text}
    raise ValueError("no part of an answer")


def input_of(arguments: str) -> dict[str, Any]:
    """The arguments of a call as an object. What is none, since a limit has cut it off say, is kept as it was written
    under one key, so that nobody takes it for arguments that were meant."""
    if not arguments.strip():
        return {}
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {"unparsed_arguments": arguments}


def stop_fields(reserved: Reserved, end: ChoiceEnd | None, *, refused: bool) -> dict[str, Any]:
    if end is None:
        return {"stop_reason": "end_turn", "stop_sequence": None}
    reason, matched = STOP_REASONS.get(end.finish_reason, "end_turn"), None
    if end.finish_reason == "length" and end.stop_cause is None and _fills_window(reserved):
        reason = "model_context_window_exceeded"
    if end.finish_reason == "stop":
        if end.stop_reason in reserved.request.params.stop:
            reason, matched = "stop_sequence", end.stop_reason
        elif refused:
            reason = "refusal"
    return {"stop_reason": reason, "stop_sequence": matched}


def _fills_window(reserved: Reserved) -> bool:
    """Whether the answer was given less than it asked for because the window has no more room."""
    asked, bound = reserved.request.params.max_tokens, reserved.estimate
    fits = bound.prompt_tokens + bound.max_output_tokens < reserved.served.context_window
    return asked is not None and asked > bound.max_output_tokens and not fits


def usage_object(reserved: Reserved, usage: Usage) -> dict[str, Any]:
    """Input tokens are those that were computed: the cached ones are counted beside them, not among them. Where policy
    hides how many there were, all count as input."""
    cached = usage.cached_tokens if tells_cached_tokens(reserved) else None
    return {
        "input_tokens": usage.prompt_tokens - (cached or 0),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens,
    }
