"""Compares a text that somebody submits with the commitment in a record. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from gateway.audit.canonical import CommitmentKey
from gateway.flow.budget import prompt_digest
from gateway.flow.transcript import response_digest
from gateway.flow.values import ChatRequest, CompletionRequest, EmbeddingRequest, Message, ToolSpec

Verdict = Literal["match", "no_match", "not_recorded", "erased"]
"""`not_recorded`: policy kept no commitment. `erased`: the salt is gone, so nothing can be compared any more."""


def compare(
    event: Mapping[str, Any], salt: bytes | None, key: CommitmentKey, kind: Literal["prompt", "response"],
    text: str | None, messages: Sequence[Message], tools: Sequence[ToolSpec] = (),
) -> Verdict:  # fmt: skip
    """A text stands for a prompt, an input, a chat with one turn of the user, or a whole answer of one choice; the
    messages of an answer are its choices."""
    committed = event["record"].get("content", {}).get(f"{kind}_commit")
    if committed is None:
        return "not_recorded"
    if salt is None:
        return "erased"
    digests = _answers(text, messages) if kind == "response" else _prompts(text, tuple(messages), tuple(tools))
    return "match" if any(key.matches(salt, kind, digest, committed) for digest in digests) else "no_match"


def _prompts(text: str | None, messages: tuple[Message, ...], tools: tuple[ToolSpec, ...]) -> Iterator[bytes]:
    if messages:
        yield prompt_digest(ChatRequest("-", messages, tools))
    if text is not None:
        yield prompt_digest(ChatRequest("-", (Message.of_text("user", text),)))
        yield prompt_digest(CompletionRequest("-", (text,)))
        yield prompt_digest(EmbeddingRequest("-", (text,)))


def _answers(text: str | None, messages: Sequence[Message]) -> Iterator[bytes]:
    if messages:
        yield response_digest([message.content for message in messages])
    if text is not None:
        yield hashlib.sha256(text.encode()).digest()
