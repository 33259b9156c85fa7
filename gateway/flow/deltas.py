"""An answer as it comes: one object for each thing that a backend says. Frozen, standard library only.

A token is one delta; the last one of a choice travels inside its `ChoiceEnd`. A kind of delta is a class and a row of
`DELTAS`: how it stands on OpenAI's wire, and which part of the answer it becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, TypeAlias

from gateway.flow.parts import Content, Part, ReasoningPart, RefusalPart, TextPart, ToolCallPart


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    source: Literal["engine", "upstream", "estimated"] = "engine"

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token: str
    token_id: int
    logprob: float | None
    """None for the first token of an echoed prompt: nothing came before it."""
    token_bytes: tuple[int, ...] = ()
    top: tuple[TokenLogprob, ...] = ()
    shown: bytes | None = None
    """What it adds to the text, where that is not its own bytes: nothing for a hidden special token, say."""


@dataclass(frozen=True, slots=True)
class Signals:
    """Evidence from the engine about one answer, for audit and routing."""

    mean_logprob: float | None = None
    min_logprob: float | None = None
    first_entropy: float | None = None
    repetition: bool = False
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    cached_tokens: int = 0
    preemptions: int = 0
    model_sha256: str | None = None
    kernels_sha256: str | None = None
    """Of the code that computed the answer."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What one choice has grown by. `text` is always whole UTF-8; deltas of one kind concatenate to the full decode."""

    index: int = 0
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    """One for each token; with `echo`, the prompt's before those of a choice's first tokens."""

    @property
    def told(self) -> str:
        """All that a caller reads of it: its text, and what names its part."""
        return self.text

    @property
    def is_empty(self) -> bool:
        """Whether it adds nothing to what a reader sees."""
        return not self.text

    def goes_on(self, before: Delta) -> bool:
        """Whether it continues the part that `before` belongs to."""
        return type(self) is type(before)

    def more(self, text: str) -> Self:
        """A further delta of the same part, without tokens."""
        return replace(self, text=text, token_ids=(), logprobs=())


@dataclass(frozen=True, slots=True)
class TextDelta(Delta):
    """Of the answer's text."""


@dataclass(frozen=True, slots=True)
class ReasoningDelta(Delta):
    """Of what a model writes before its answer."""


@dataclass(frozen=True, slots=True)
class RefusalDelta(Delta):
    """Of what a model says instead of an answer that it will not give."""


@dataclass(frozen=True, slots=True)
class ToolCallDelta(Delta):
    """Of the arguments of one call; the first names it."""

    call: int = 0
    """Which call of the choice."""
    call_id: str | None = None
    name: str | None = None

    @property
    def told(self) -> str:
        return self.text if self.name is None else self.name + self.text

    @property
    def is_empty(self) -> bool:
        return not self.text and self.name is None

    def goes_on(self, before: Delta) -> bool:
        return isinstance(before, ToolCallDelta) and before.call == self.call

    def more(self, text: str) -> Self:
        return replace(self, text=text, token_ids=(), logprobs=(), call_id=None, name=None)


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """The end of one choice.

    `finish_reason`: stop | length | content_filter | tool_calls | abort. `stop_cause` (`budget`, `revoked`, `deadline`,
    `policy`, `guardrails`, `repetition`) says why the gateway or the engine ended it early.
    """

    last: Delta
    """What came with the end; often without text."""
    finish_reason: str
    stop_cause: str | None = None
    signals: Signals | None = None
    stop_reason: str | int | None = None
    """vLLM's field: the stop string or the token id that matched."""

    @property
    def index(self) -> int:
        return self.last.index


@dataclass(frozen=True, slots=True)
class UsageReport:
    """What the whole request has used, by the backend's own count; comes once, before or after the last end."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    entries: tuple[TokenLogprob | None, ...]
    index: int = 0
    """The first choice of the prompt."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """Embeddings, one per input in order."""

    vectors: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Of a prompt that is only counted."""

    tokens: int
    token_ids: tuple[int, ...] = ()
    texts: tuple[str, ...] | None = None
    """What each token stands for, where that was asked for."""
    text: str = ""
    """Of token ids that were to be read back."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What the guardrails found: of each text, by category, the kinds and how sure each is."""

    texts: tuple[Mapping[str, Mapping[str, float]], ...]


Chunk: TypeAlias = Delta | ChoiceEnd | UsageReport | PromptLogprobs | Vectors | TokenCount | Verdicts
"""A piece of an answer."""


@dataclass(frozen=True, slots=True)
class DeltaKind:
    """The row of one kind of delta."""

    name: str
    wire: Callable[[Any], Mapping[str, Any]]
    """The `delta` of a frame of OpenAI's chat API."""
    part: Callable[[Any, str], Part]
    """The part that begins with this delta and has this text."""


DELTAS: Mapping[type[Delta], DeltaKind] = {
    TextDelta: DeltaKind("text", lambda delta: {"content": delta.text}, lambda _, text: TextPart(text)),
    ReasoningDelta: DeltaKind(
        "reasoning", lambda delta: {"reasoning_content": delta.text}, lambda _, text: ReasoningPart(text)
    ),
    RefusalDelta: DeltaKind("refusal", lambda delta: {"refusal": delta.text}, lambda _, text: RefusalPart(text)),
    ToolCallDelta: DeltaKind(
        "tool_call",
        lambda delta: {"tool_calls": [_call_fields(delta)]},
        lambda first, text: ToolCallPart(first.call_id or "", first.name or "", text),
    ),
}


def delta_fields(delta: Delta) -> Mapping[str, Any]:
    return DELTAS[type(delta)].wire(delta)


def content_of(deltas: Iterable[Delta]) -> Content:
    """The parts that the deltas of one choice make together, in the order in which they began; one empty text where
    there are none. Calls may grow in turns."""
    opened = list[tuple[Delta, list[str]]]()
    calls = dict[int, list[str]]()
    for delta in deltas:
        if isinstance(delta, ToolCallDelta) and delta.call in calls:
            calls[delta.call].append(delta.text)
        elif opened and delta.goes_on(opened[-1][0]):
            opened[-1][1].append(delta.text)
        else:
            opened.append((delta, [delta.text]))
            if isinstance(delta, ToolCallDelta):
                calls[delta.call] = opened[-1][1]
    if not opened:
        return (TextPart(""),)
    return tuple([DELTAS[type(first)].part(first, "".join(texts)) for first, texts in opened])


def deltas_from(content: Content, index: int = 0) -> Iterator[Delta]:
    """Whole deltas that make these parts of an answer; nothing for parts that no answer has."""
    calls = 0
    for part in content:
        match part:
            case TextPart(text):
                yield TextDelta(index, text)
            case ReasoningPart(text):
                yield ReasoningDelta(index, text)
            case RefusalPart(text):
                yield RefusalDelta(index, text)
            case ToolCallPart(call_id, name, arguments):
                yield ToolCallDelta(index, arguments, call=calls, call_id=call_id, name=name)
                calls += 1


def _call_fields(delta: ToolCallDelta) -> dict[str, Any]:
    function = {"arguments": delta.text} if delta.name is None else {"name": delta.name, "arguments": delta.text}
    named = {} if delta.call_id is None else {"id": delta.call_id, "type": "function"}
    return {"index": delta.call, **named, "function": function}
