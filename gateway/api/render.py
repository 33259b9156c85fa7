"""Chunks become OpenAI-shaped objects: whole answers and stream frames of chat and text completions.

Pure. A `ResponseFormat` knows the names of one route's objects; nothing here knows HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.api.headers import tells_cached_tokens
from gateway.api.text_offsets import TextOffsets
from gateway.flow.answer import Bill
from gateway.flow.deltas import content_of, delta_fields
from gateway.flow.parts import Content, TextPart, message_fields
from gateway.flow.stages import Reserved
from gateway.flow.values import ChoiceEnd, Chunk, Delta, PromptLogprobs, TokenLogprob, Usage


class ResponseFormat(Protocol):
    """One route's way of showing an answer."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """The choice of the frame that comes before a choice's first text, or None."""
        ...

    def delta(self, delta: Delta, finish_reason: str | None, offsets: TextOffsets) -> dict[str, Any]: ...

    def whole(self, index: int, parts: ChoiceBuffer) -> dict[str, Any]: ...

    @property
    def id_prefix(self) -> str: ...

    @property
    def object(self) -> str: ...

    @property
    def chunk_object(self) -> str: ...


@dataclass(slots=True)
class ChoiceBuffer:
    """One choice as collected from its chunks."""

    deltas: list[Delta] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_cause: str | None = None
    stop_reason: str | int | None = None
    prompt_logprobs: Sequence[TokenLogprob | None] | None = None

    @property
    def evidence(self) -> int:
        """Tokens with log-probabilities."""
        return len(self.logprobs) + len(self.prompt_logprobs or ())

    @property
    def text(self) -> str:
        return "".join([delta.text for delta in self.deltas])

    def add(self, delta: Delta) -> None:
        if not delta.is_empty:
            self.deltas.append(delta)
        self.logprobs.extend(delta.logprobs)


def collect(choices: Sequence[ChoiceBuffer], chunk: Chunk) -> None:
    """The chunk in its choice. A prompt's log-probabilities are told with its first."""
    match chunk:
        case Delta():
            choices[chunk.index].add(chunk)
        case ChoiceEnd(last=last):
            choice = choices[last.index]
            choice.add(last)
            choice.finish_reason, choice.stop_cause = chunk.finish_reason, chunk.stop_cause
            choice.stop_reason = chunk.stop_reason
        case PromptLogprobs(entries=entries, index=index):
            choices[index].prompt_logprobs = entries


class ChatFormat:
    id_prefix = "chatcmpl-"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self, index: int) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def delta(self, delta: Delta, finish_reason: str | None, offsets: TextOffsets) -> dict[str, Any]:  # noqa: ARG002
        return {
            "index": delta.index,
            "delta": {} if delta.is_empty and finish_reason is not None else both_names(delta_fields(delta)),
            "logprobs": _chat_logprobs(delta.logprobs) if delta.logprobs else None,
            "finish_reason": finish_reason,
        }

    def whole(self, index: int, parts: ChoiceBuffer) -> dict[str, Any]:
        message = {"role": "assistant", "content": None, "refusal": None}
        return {
            "index": index,
            "message": {**message, **said_fields(content_of(parts.deltas))},
            "logprobs": _chat_logprobs(parts.logprobs) if parts.logprobs else None,
            "finish_reason": parts.finish_reason,
        }


class CompletionFormat:
    id_prefix = "cmpl-"
    object = "text_completion"
    chunk_object = "text_completion"

    def opening(self, index: int) -> dict[str, Any] | None:  # noqa: ARG002
        return None

    def delta(self, delta: Delta, finish_reason: str | None, offsets: TextOffsets) -> dict[str, Any]:
        return {
            "index": delta.index,
            "text": delta.text,
            "logprobs": _completion_logprobs(delta.logprobs, offsets) if delta.logprobs else None,
            "finish_reason": finish_reason,
        }

    def whole(self, index: int, parts: ChoiceBuffer) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "text": parts.text,
            "logprobs": _completion_logprobs(parts.logprobs, TextOffsets()) if parts.logprobs else None,
            "finish_reason": parts.finish_reason,
        }
        if parts.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs_object(parts.prompt_logprobs)
        return choice


def matched(stop_reason: str | int | None) -> dict[str, Any]:
    """vLLM's field: the stop string or token that has ended a choice, or `repetition`."""
    return {} if stop_reason is None else {"stop_reason": stop_reason}


def said_fields(content: Content) -> Mapping[str, Any]:
    """The fields of an answer: one text, whatever came between its pieces, and what a model has reasoned under both
    names that clients read, DeepSeek's and vLLM's newer one."""
    fields = message_fields(content)
    if isinstance(fields["content"], list):
        fields["content"] = "".join([part.text for part in content if isinstance(part, TextPart)])
    return both_names(fields)


def both_names(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    reasoning = fields.get("reasoning_content")
    return fields if reasoning is None else {**fields, "reasoning": reasoning}


def envelope(answer_format: ResponseFormat, reserved: Reserved, *, streaming: bool) -> dict[str, Any]:
    """The fields that every object of one answer shares."""
    return {
        "id": f"{answer_format.id_prefix}{reserved.request_id.hex}",
        "object": answer_format.chunk_object if streaming else answer_format.object,
        "created": int(reserved.context.received_at.timestamp()),
        "model": reserved.served.id,
    }


def whole_answer(
    answer_format: ResponseFormat, reserved: Reserved, bill: Bill, choices: Sequence[ChoiceBuffer]
) -> dict[str, Any]:
    body = envelope(answer_format, reserved, streaming=False)
    body["choices"] = [
        answer_format.whole(index, parts) | matched(parts.stop_reason) for index, parts in enumerate(choices)
    ]
    body["usage"] = usage_object(reserved, bill.usage)
    if isinstance(answer_format, ChatFormat) and choices[0].prompt_logprobs is not None:
        body["prompt_logprobs"] = prompt_logprobs_object(choices[0].prompt_logprobs)
    stop_cause = next((part.stop_cause for part in choices if part.stop_cause), None)
    body["x_esclusa"] = extension(reserved, bill, stop_cause)
    return body


def extension(reserved: Reserved, bill: Bill, stop_cause: str | None) -> dict[str, Any]:
    """Our own key in a body: which model ran, why, under which policy, and why it was stopped early."""
    body: dict[str, Any] = {
        "request_id": str(reserved.request_id),
        "route": reserved.plan.route,
        "policy_version": reserved.decision.policy_version,
        "cost_micro": bill.cost_micro,
    }
    if stop_cause is not None:
        body["stop"] = stop_cause
    return body


def usage_object(reserved: Reserved, usage: Usage) -> dict[str, Any]:
    """Without the cached tokens where policy hides them: they tell whether somebody else has sent the same prompt."""
    body: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }
    if tells_cached_tokens(reserved):
        body["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    if usage.reasoning_tokens:
        body["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return body


def _chat_logprobs(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    return {
        "content": [_entry(entry) | {"top_logprobs": [_entry(top) for top in entry.top]} for entry in entries],
        "refusal": None,
    }


def _entry(entry: TokenLogprob) -> dict[str, Any]:
    raw = list(entry.token_bytes) if entry.token_bytes else list(entry.token.encode())
    return {"token": entry.token, "logprob": entry.logprob, "bytes": raw}


def _completion_logprobs(entries: Sequence[TokenLogprob], offsets: TextOffsets) -> dict[str, Any]:
    return {
        "tokens": [_name(entry) for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [_alternatives(entry) for entry in entries],
        "text_offset": [offsets.take(_shown(entry)) for entry in entries],
    }


def _alternatives(entry: TokenLogprob) -> dict[str, float | None] | None:
    """The alternatives and the token itself, most likely first. Of two with the same bytes the more likely is kept."""
    found: dict[str, float | None] = {}
    for one in (*entry.top, entry) if entry.top else ():
        found.setdefault(_name(one), one.logprob)
    return found or None


def _name(entry: TokenLogprob) -> str:
    """The token's text; for a part of a character its bytes in OpenAI's form, so that no two parts look the same."""
    raw = bytes(entry.token_bytes)
    try:
        raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join([f"\\x{byte:02x}" for byte in raw])
    return entry.token


def _shown(entry: TokenLogprob) -> bytes:
    if entry.shown is not None:
        return entry.shown
    return bytes(entry.token_bytes) or entry.token.encode("utf-8", "replace")


def prompt_logprobs_object(entries: Sequence[TokenLogprob | None]) -> list[dict[str, Any] | None]:
    """vLLM's form: per prompt position the candidates by token id; the first position has none."""
    return [
        None
        if entry is None
        else {
            str(found.token_id): {"logprob": found.logprob, "decoded_token": found.token}
            for found in (entry, *entry.top)
        }
        for entry in entries
    ]
