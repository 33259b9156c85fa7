"""The step being built and what a step did to a sequence. Plain values; decides nothing."""

from __future__ import annotations

from collections import abc
from typing import NamedTuple

from engine.sequence import Kind, Sequence
from engine.step import SampledToken, Work

PromptPosition = tuple[int, float, int, tuple[tuple[int, float], ...]]
"""(token id, log-probability, rank, most likely ones) of the prompt token after a position."""


class SequenceUpdate(NamedTuple):
    """The result of one step for one sequence. `sequence.finish_reason` is set when it ended."""

    sequence: Sequence
    start: int
    """First position that the step computed."""
    token: SampledToken | None = None
    prompt_logprobs: abc.Sequence[PromptPosition] | None = None
    pooled: abc.Sequence[float] | None = None
    error: Exception | None = None


class Plan:
    """sequence -> new tokens, in order, and what is left of the token budget."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.prefill_tokens = 0
        self.most_prefill = budget
        """Prefill tokens that may join this step."""
        self.new_tokens: dict[Sequence, int] = {}

    def put(self, sequence: Sequence, count: int) -> None:
        self.new_tokens[sequence] = count
        self.budget -= count
        if sequence.remaining > 1:
            self.prefill_tokens += count

    def put_decode(self, sequence: Sequence) -> None:
        self.new_tokens[sequence] = 1
        self.budget -= 1

    def refund(self, sequence: Sequence) -> None:
        count = self.new_tokens.pop(sequence, 0)
        self.budget += count
        if sequence.remaining > 1:
            self.prefill_tokens -= count

    def separate_suspects(self, step_id: int) -> None:
        """A suspect of a crash never shares a step: suspects, one request at a time, alternate with all others.

        Who is dropped keeps its slot and blocks and is planned again in the next step.
        """
        suspects = list(dict.fromkeys([s.request_id for s in self.new_tokens if s.suspect]))
        if not suspects:
            return
        others = any(not sequence.suspect for sequence in self.new_tokens)
        alone = None if others and step_id % 2 else suspects[step_id // 2 % len(suspects)]
        self.new_tokens = {
            sequence: count
            for sequence, count in self.new_tokens.items()
            if (not sequence.suspect if alone is None else sequence.request_id == alone)
        }

    def to_work(self) -> tuple[Work, ...]:
        """The step's work. Marks the sequences as seen by the runner."""
        work = []
        for sequence, count in self.new_tokens.items():
            start, fresh = sequence.num_computed, sequence.fresh
            samples = start + count == len(sequence.token_ids)
            scores_prompt = sequence.want_prompt_logprobs and start < sequence.num_prompt_tokens
            pools = sequence.kind is Kind.EMBED
            work.append(Work(sequence.slot, sequence, start, count, samples, fresh, scores_prompt, pools))
            if fresh:
                sequence.fresh = False
        return tuple(work)
