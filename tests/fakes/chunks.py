"""Chunks written and read in one line, whatever kind they are of."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.flow.values import (
    ChoiceEnd,
    Chunk,
    Delta,
    PromptLogprobs,
    Signals,
    TextDelta,
    TokenCount,
    TokenLogprob,
    Usage,
    UsageReport,
    Vectors,
    Verdicts,
)


def said(
    text: str = "",
    token_ids: tuple[int, ...] = (),
    finish_reason: str | None = None,
    *,
    index: int = 0,
    logprobs: tuple[TokenLogprob, ...] = (),
) -> TextDelta | ChoiceEnd:
    """A text, or the end of a choice."""
    delta = TextDelta(index, text, token_ids, logprobs)
    return delta if finish_reason is None else ChoiceEnd(delta, finish_reason)


@dataclass(frozen=True)
class Heard:
    """What any chunk says; nothing where it is of another kind."""

    index: int = 0
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None
    stop_cause: str | None = None
    signals: Signals | None = None
    usage: Usage | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    vectors: tuple[tuple[float, ...], ...] | None = None


def heard(chunk: Chunk) -> Heard:
    match chunk:
        case UsageReport(usage=usage):
            return Heard(usage=usage)
        case PromptLogprobs(entries=entries):
            return Heard(prompt_logprobs=entries)
        case TokenCount() | Verdicts():
            return Heard()
        case Vectors(vectors=vectors):
            return Heard(vectors=vectors)
        case ChoiceEnd(last=last):
            end = (chunk.finish_reason, chunk.stop_cause, chunk.signals)
            return Heard(last.index, last.text, last.token_ids, last.logprobs, *end)
        case Delta():
            return Heard(chunk.index, chunk.text, chunk.token_ids, chunk.logprobs)
