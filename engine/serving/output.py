"""Sampled tokens turned into events: text, log-probabilities, usage, signals, aggregation of n choices.

Owns one request's visible state. Knows no scheduler and no threads; told when a sequence has ended.
"""

from __future__ import annotations

from array import array
from collections import abc

from engine.ports import TokenizerPort
from engine.requests import (
    EngineSignals,
    EngineUsage,
    FinishReason,
    GenerationEvent,
    Logprob,
    SamplingParams,
    TokenLogprobs,
)
from engine.scheduling.plan import PromptPosition, SequenceUpdate
from engine.scheduling.stopping import is_looping
from engine.sequence import Sequence
from engine.step import SampledToken
from engine.text.detokenizer import Detokenizer
from engine.text.stop_strings import StopMatcher

FIRST_ENTROPIES = 8


class TokenBytes(dict[int, bytes]):
    """The bytes of tokens seen so far; at most one entry a token of the vocabulary. A lookup costs no call."""

    def __init__(self, tokenizer: TokenizerPort) -> None:
        self._tokenizer = tokenizer

    def __missing__(self, token_id: int) -> bytes:
        raw = self[token_id] = self._tokenizer.token_bytes(token_id)
        return raw


class ChoiceOutput:
    """Text and statistics of one choice."""

    __slots__ = (
        "_detokenizer",
        "_endings",
        "_entropies",
        "_logprobs",
        "_sequence",
        "_token_bytes",
        "last_token_at",
        "reported",
        "stopped_by",
    )

    def __init__(
        self, sequence: Sequence, tokenizer: TokenizerPort, token_bytes: TokenBytes, matcher: StopMatcher | None
    ) -> None:
        sampling = sequence.sampling
        self._sequence = sequence
        self._token_bytes = token_bytes
        self._detokenizer = Detokenizer(
            token_bytes.__getitem__,
            matcher=matcher,
            include_stop=sampling.include_stop_str_in_output,
            min_tokens=sampling.min_tokens,
            hidden=tokenizer.special_token_ids - sampling.shown_token_ids
            if sampling.skip_special_tokens
            else frozenset(),
        )
        self._endings = frozenset(sampling.stop_token_ids) | tokenizer.eos_token_ids
        self._logprobs = array("d")
        self._entropies: list[float] = []
        self.reported = False
        """Its last event has been made."""
        self.last_token_at: float | None = None
        self.stopped_by: str | None = None
        """The stop string that ended the text."""

    def accept(self, token: SampledToken) -> str:
        """Count a token and return the text that is now certain. The token that ends the choice shows no text."""
        if token.logprob is not None:
            self._logprobs.append(token.logprob)
        if token.entropy is not None and len(self._entropies) < FIRST_ENTROPIES:
            self._entropies.append(token.entropy)
        sequence = self._sequence
        ended = sequence.finish_reason is FinishReason.STOP and token.token_id in self._endings
        if ended and not sequence.sampling.include_stop_str_in_output:
            return ""
        text = self._detokenizer.push(token.token_id)
        self.stopped_by = self._detokenizer.stopped_by
        return text

    def flush(self) -> str:
        text = self._detokenizer.flush()
        self.stopped_by = self._detokenizer.stopped_by
        return text

    def logprobs_of(self, token: SampledToken) -> tuple[TokenLogprobs, ...]:
        if self._sequence.sampling.logprobs is None or token.logprob is None:
            return ()
        return (token_logprobs(self._token_bytes, token.token_id, token.logprob, token.rank, token.top),)

    def signals(self) -> EngineSignals:
        s, logprobs = self._sequence, self._logprobs
        end = s.finished_at if s.finished_at is not None else s.arrived_at
        admitted = s.admitted_at if s.admitted_at is not None else end
        first = s.first_token_at if s.first_token_at is not None else end
        return EngineSignals(
            mean_logprob=sum(logprobs) / len(logprobs) if logprobs else None,
            min_logprob=min(logprobs) if logprobs else None,
            first_entropies=tuple(self._entropies),
            repetition=is_looping(s.token_ids[s.num_prompt_tokens :]),
            queue_s=admitted - s.arrived_at,
            prefill_s=max(0.0, first - admitted),
            decode_s=max(0.0, end - first),
            cached_tokens=max(0, s.num_cached),
            preemptions=s.preemptions,
            seed=s.seed,
        )


class RequestOutput:
    """All choices of one request. The last event carries the usage, counted once."""

    __slots__ = ("_prompt_logprobs", "_token_bytes", "choices", "request_id", "sequences")

    def __init__(
        self,
        request_id: str,
        sampling: SamplingParams,
        sequences: abc.Sequence[Sequence],
        tokenizer: TokenizerPort,
        token_bytes: TokenBytes,
    ) -> None:
        matcher = StopMatcher(sampling.stop) if sampling.stop else None
        self.request_id = request_id
        self.sequences = tuple(sequences)
        self.choices = tuple(ChoiceOutput(s, tokenizer, token_bytes, matcher) for s in sequences)
        self._token_bytes = token_bytes
        self._prompt_logprobs: list[TokenLogprobs | None] = []

    @property
    def done(self) -> bool:
        return all(choice.reported for choice in self.choices)

    @property
    def has_begun(self) -> bool:
        """Some choice has a token, or has ended."""
        return any(choice.reported or choice.last_token_at is not None for choice in self.choices)

    def add_prompt_logprobs(self, advance: SequenceUpdate, positions: abc.Sequence[PromptPosition]) -> None:
        """Entries for prompt tokens after the chunk's positions; a restart after preemption replaces what was there."""
        if not self._prompt_logprobs:
            self._prompt_logprobs.append(None)
        del self._prompt_logprobs[advance.start + 1 :]
        self._prompt_logprobs.extend(
            token_logprobs(self._token_bytes, token_id, logprob, rank, top)
            for token_id, logprob, rank, top in positions
        )
        del self._prompt_logprobs[advance.sequence.num_prompt_tokens :]

    def event(self, sequence: Sequence, token: SampledToken | None, text: str) -> GenerationEvent:
        """The event for what just happened to `sequence`; its last one if it has ended."""
        ended = sequence.finish_reason is not None
        if not ended and token is not None and not self._prompt_logprobs and sequence.sampling.logprobs is None:
            return GenerationEvent(self.request_id, sequence.choice, text, (token.token_id,))
        choice = self.choices[sequence.choice]
        choice.reported = choice.reported or ended
        prompt: list[TokenLogprobs | None] = []
        if sequence.choice == 0:
            prompt, self._prompt_logprobs = self._prompt_logprobs, prompt
        return GenerationEvent(
            request_id=self.request_id,
            index=sequence.choice,
            text=text,
            token_ids=() if token is None else (token.token_id,),
            logprobs=() if token is None else choice.logprobs_of(token),
            prompt_logprobs=tuple(prompt) if prompt else None,
            finish_reason=sequence.finish_reason,
            stop_reason=sequence.stop_reason,
            usage=self.usage() if ended and self.done else None,
            signals=choice.signals() if ended else None,
        )

    def usage(self) -> EngineUsage:
        first = self.sequences[0]
        return EngineUsage(
            prompt_tokens=first.num_prompt_tokens,
            completion_tokens=sum(s.num_output for s in self.sequences),
            cached_tokens=max(0, first.num_cached),
        )

    def prompt_mean_logprob(self) -> float | None:
        values = [entry.logprob for entry in self._prompt_logprobs if entry is not None]
        return sum(values) / len(values) if values else None


def _hidden(tokenizer: TokenizerPort, sampling: SamplingParams) -> frozenset[int]:
    return tokenizer.special_token_ids - sampling.shown_token_ids if sampling.skip_special_tokens else frozenset()


def token_logprobs(
    token_bytes: TokenBytes, token_id: int, logprob: float, rank: int | None, top: abc.Sequence[tuple[int, float]]
) -> TokenLogprobs:
    """`top` is most likely first; ranks count from 1."""
    entries = []
    for position, (candidate, value) in enumerate(top):
        raw = token_bytes[candidate]
        entries.append(Logprob(candidate, value, position + 1, raw.decode("utf-8", "replace"), raw))
    raw = token_bytes[token_id]
    return TokenLogprobs(token_id, logprob, raw.decode("utf-8", "replace"), tuple(entries), rank, raw)
