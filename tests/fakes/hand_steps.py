"""Drive a ModelRunner with hand-made steps: sequences that own their blocks, no scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.execution.runner import ModelRunner
from engine.requests import SamplingParams
from engine.step import SampledToken, Step, StepResult, Work

GREEDY = SamplingParams(temperature=0.0)


@dataclass
class HandSequence:
    """Implements `engine.step.SequenceView`."""

    token_ids: list[int]
    sampling: SamplingParams = GREEDY
    seed: int = 0
    request_id: str = "r"
    choice: int = 0
    num_prompt_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    grammar: Any = None
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    num_computed: int = 0

    def __post_init__(self) -> None:
        self.token_ids = list(self.token_ids)
        self.num_prompt_tokens = self.num_prompt_tokens or len(self.token_ids)


class HandDriver:
    """Runs a fixed set of sequences together. Blocks are handed out in a scattered order and never freed."""

    def __init__(self, runner: ModelRunner, sequences: Sequence[HandSequence], chunk: int = 10**9) -> None:
        self.runner, self.sequences, self._chunk = runner, list(sequences), chunk
        self._free: Iterator[int] = iter(sorted(range(runner.num_blocks), key=lambda block: block * 7919 % 101))
        self._fresh = [True] * len(self.sequences)
        self._steps = 0

    def step(self, *, pool: bool = False, prompt_logprobs: bool = False) -> StepResult:
        work = []
        for slot, sequence in enumerate(self.sequences):
            size = min(self._chunk, len(sequence.token_ids) - sequence.num_computed)
            end = sequence.num_computed + size
            while len(sequence.block_table) * self.runner.block_size < end:
                sequence.block_table.append(next(self._free))
            sample = end == len(sequence.token_ids)
            work.append(
                Work(
                    slot,
                    sequence,
                    sequence.num_computed,
                    size,
                    sample,
                    self._fresh[slot],
                    want_prompt_logprobs=prompt_logprobs,
                    pool=pool,
                )
            )
            self._fresh[slot] = False
        self._steps += 1
        result = self.runner.execute(Step(self._steps, tuple(work)))
        for item in work:
            sequence = self.sequences[item.slot]
            sequence.num_computed += item.num_new
            if item.slot in result.tokens:
                sequence.token_ids.append(result.tokens[item.slot].token_id)
        return result

    def generate(self, count: int) -> list[list[SampledToken]]:
        """Run until each sequence has `count` new tokens."""
        made: list[list[SampledToken]] = [[] for _ in self.sequences]
        while min(len(tokens) for tokens in made) < count:
            for slot, token in self.step().tokens.items():
                made[slot].append(token)
        return [tokens[:count] for tokens in made]
