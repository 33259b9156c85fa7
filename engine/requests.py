"""Requests to the engine and the events it returns, as immutable values. No torch, no queues.

The gateway sends a `GenerationRequest` and receives `GenerationEvent`s; nothing else crosses the border.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple


class FinishReason(StrEnum):
    """vLLM's words, plus the reasons only an engine with authority has."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    DEADLINE = "deadline"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Grammar:
    """Constrain the answer. `value` is a schema (dict or JSON text), a regex, a list of choices, or Lark text; of
    `tool_calls` it is what `ChatTokenizer.call_grammar` made."""

    type: Literal["json_schema", "json_object", "regex", "choice", "grammar", "tool_calls"]
    value: Any = None


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens. Order of processors, documented in docs/concepts/engine.md: allowed ids, bad words,
    min_tokens, grammar mask, logit_bias, penalties, then greedy or temperature, min_p, top_k, top_p.

    Ranges are checked by `validate` at submission; `temperature=0` is greedy and overrides the rest.
    Repetition counts prompt and output; presence and frequency count the output only (vLLM's semantics).
    """

    max_tokens: int | None = None
    """None: the room left in the window."""
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    logprobs: int | None = None
    """None: none. k: the sampled token's log-probability and the k most likely (0 = sampled only)."""
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    shown_token_ids: frozenset[int] = frozenset()
    """Special tokens that are in the text although the others are skipped: a parser of the text needs them."""
    grammar: Grammar | None = None
    stop_on_repetition: bool = False
    """End with `length` and the stop reason `repetition` once the text does nothing but repeat itself."""


@dataclass(frozen=True, slots=True)
class SchedulingHints:
    """What the scheduler goes by beside the order of arrival."""

    share_key: str = ""
    """What fairness is measured by: requests with one key share one share."""
    share_weight: float = 1.0
    priority: int = 0
    """Lower runs first (vLLM's convention)."""
    deadline_s: float | None = None
    """On the clock of `time.monotonic`."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt. `cache_salt` isolates the prefix cache."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams = SamplingParams()
    cache_salt: bytes | None = None
    scheduling: SchedulingHints = SchedulingHints()
    adapter: str | None = None


@dataclass(frozen=True, slots=True)
class Logprob:
    token_id: int
    logprob: float
    rank: int
    text: str = ""
    raw: bytes = b""
    """The token's exact bytes; `text` may hold U+FFFD where they are part of a character."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The sampled token first, then up to k most likely ones (so up to k + 1 entries). Raw: before any processor."""

    token_id: int
    logprob: float
    text: str = ""
    top: tuple[Logprob, ...] = ()
    rank: int | None = None
    raw: bytes = b""


@dataclass(frozen=True, slots=True)
class EngineUsage:
    """Counted once per prompt; completion tokens summed over the choices."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class EngineSignals:
    """Evidence about one choice, sent with its last event."""

    mean_logprob: float | None = None
    min_logprob: float | None = None
    first_entropies: tuple[float, ...] = ()
    """Entropy in nats of the first generated positions (up to 8)."""
    repetition: bool = False
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    cached_tokens: int = 0
    preemptions: int = 0
    seed: int | None = None
    """The seed used, also when the engine drew it: with it the answer can be reproduced."""


class GenerationEvent(NamedTuple):
    """A delta of one choice: `finish_reason` ends the choice, `usage` comes with the request's last event.

    A named tuple because one is made per running sequence and step.
    """

    request_id: str
    index: int = 0  # type: ignore[assignment]  # of the choice; a tuple's search method gives way to it
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    """The stop string or token id that matched, or the reason given to `stop`/`abort`."""
    usage: EngineUsage | None = None
    signals: EngineSignals | None = None


@dataclass(frozen=True, slots=True)
class PromptScore:
    """The score of one prefill of a prompt: for routing on engine evidence."""

    first_entropy: float
    first_margin: float
    """Difference of the two highest first-token probabilities."""
    prompt_mean_logprob: float | None
    prompt_tokens: int
    cached_tokens: int
