"""An answer as OpenAI's response object. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.api.headers import tells_cached_tokens
from gateway.api.render import ChoiceBuffer, extension
from gateway.api.responses.conversation import ItemIds, output_items
from gateway.api.responses.request import ResponseParams, ResponsesRequest
from gateway.api.responses.tools import choice_object, tool_object
from gateway.errors import GatewayError
from gateway.flow.answer import Bill
from gateway.flow.deltas import content_of
from gateway.flow.stages import Reserved
from gateway.flow.values import ChoiceEnd, TextDelta, TokenLogprob, Usage

ERROR_CODES: Mapping[int, str] = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
"""OpenAI's few codes of a failed response, by status; any other is `server_error`. Ours is in `x_esclusa`."""


def response_id(reserved: Reserved) -> str:
    return f"resp_{reserved.request_id.hex}"


def asked_of(reserved: Reserved) -> ResponseParams:
    request = reserved.request
    return request.asked if isinstance(request, ResponsesRequest) else ResponseParams()


@dataclass(frozen=True, slots=True)
class Ending:
    """How a response ended."""

    status: str
    incomplete: str | None = None
    stop_cause: str | None = None

    @classmethod
    def of(cls, end: ChoiceEnd | None) -> Ending:
        if end is None or end.finish_reason in ("stop", "tool_calls"):
            return cls("completed", stop_cause=None if end is None else end.stop_cause)
        reason = "content_filter" if end.finish_reason == "content_filter" else "max_output_tokens"
        return cls("incomplete", reason, end.stop_cause)


def response_object(
    reserved: Reserved,
    *,
    status: str = "in_progress",
    output: Sequence[Mapping[str, Any]] = (),
    store: bool,
    completed_at: int | None = None,
) -> dict[str, Any]:
    """The object while nothing of the answer is known, or with what is."""
    request, asked = reserved.request, asked_of(reserved)
    tools: list[dict[str, Any]] = []
    choice: str | dict[str, Any] = "auto"
    instructions: str | None = None
    if isinstance(request, ResponsesRequest):
        tools, choice = [tool_object(tool) for tool in request.tools], choice_object(request.tool_choice)
        instructions = request.messages[0].texts[0] if asked.instructed else None
    conversation = None if asked.conversation is None else {"id": asked.conversation}
    return {
        "id": response_id(reserved),
        "object": "response",
        "created_at": int(reserved.context.received_at.timestamp()),
        "status": status,
        "background": False,
        "completed_at": completed_at,
        "conversation": conversation,
        "error": None,
        "incomplete_details": None,
        "instructions": instructions,
        "model": reserved.served.id,
        "output": list(output),
        "previous_response_id": asked.previous_response_id,
        "store": store,
        "tool_choice": choice,
        "tools": tools,
        "usage": None,
        **asked.echo,
    }


def ended(
    reserved: Reserved, bill: Bill, output: Sequence[Mapping[str, Any]], ending: Ending, *, store: bool, now: int
) -> dict[str, Any]:
    completed_at = now if ending.status == "completed" else None
    body = response_object(reserved, status=ending.status, output=output, store=store, completed_at=completed_at)
    if ending.incomplete is not None:
        body["incomplete_details"] = {"reason": ending.incomplete}
    body["usage"] = usage_object(reserved, bill.usage)
    body["x_esclusa"] = extension(reserved, bill, ending.stop_cause)
    return body


def failed(reserved: Reserved, bill: Bill, output: Sequence[Mapping[str, Any]], error: GatewayError) -> dict[str, Any]:
    body = response_object(reserved, status="failed", output=output, store=False)
    body["error"] = {"code": ERROR_CODES.get(error.status, "server_error"), "message": error.message}
    body["x_esclusa"] = {**extension(reserved, bill, None), "code": error.code}
    return body


def whole_output(reserved: Reserved, choice: ChoiceBuffer, ending: Ending) -> list[dict[str, Any]]:
    """The items of an answer that is here as a whole. Log-probabilities stand with the first text."""
    output = output_items(content_of(choice.deltas), ItemIds(reserved.request_id.hex))
    close_last(output, ending)
    texts = [delta for delta in choice.deltas if isinstance(delta, TextDelta)]
    entries = choice.logprobs
    if len(texts) < len(choice.deltas):
        entries = [entry for delta in texts for entry in delta.logprobs]
    for part in (part for item in output for part in item.get("content", ())):
        if part["type"] == "output_text" and entries:
            part["logprobs"], entries = logprobs_object(entries), []
    return output


def close_last(output: Sequence[dict[str, Any]], ending: Ending) -> None:
    """What was cut off is the last item."""
    if ending.status != "completed" and output:
        output[-1]["status"] = "incomplete"


def usage_object(reserved: Reserved, usage: Usage) -> dict[str, Any]:
    """Where policy hides how many tokens were cached, none are told of."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens if tells_cached_tokens(reserved) else 0,
            "cache_write_tokens": 0,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def logprobs_object(entries: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    return [_entry(entry) | {"top_logprobs": [_entry(top) for top in entry.top]} for entry in entries]


def _entry(entry: TokenLogprob) -> dict[str, Any]:
    raw = list(entry.token_bytes) if entry.token_bytes else list(entry.token.encode())
    return {"token": entry.token, "logprob": entry.logprob, "bytes": raw}
