"""The border between the torch-free half (scheduler) and the numeric half (runner): one step in, one result out.

`Scheduler.schedule() -> Step`, `Runner.execute(step) -> StepResult`, `Scheduler.update(step, result)`.
No torch here: the scheduler's tests drive a fake runner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from engine.requests import SamplingParams


class SequenceView(Protocol):
    """A runner's read-only view of a sequence."""

    request_id: str
    choice: int
    """Index of the choice (n > 1)."""
    seed: int
    """64-bit seed of this choice; a draw depends on (seed, position) alone."""
    sampling: SamplingParams
    token_ids: list[int]
    """Prompt and generated tokens; grows at the end only."""
    num_prompt_tokens: int
    block_table: list[int]
    """Physical block ids; grows at the end only, replaced as a whole after a preemption."""
    grammar: Any
    """A compiled matcher (see engine/text/grammar.py) or None."""
    bad_word_ids: tuple[tuple[int, ...], ...]
    """Tokenized bad words."""


class Work(NamedTuple):
    """One sequence's share of a step: tokens `[num_computed, num_computed + num_new)` of `sequence.token_ids`.

    A named tuple, like `SampledToken`, because one is made per running sequence and step.

    `slot` is a dense row (0 <= slot < max_num_seqs), stable while the sequence runs; the runner keeps persistent
    arrays indexed by it. `sample` is True when these tokens reach the last known one, so that its logits give the
    next token. `prompt_logprobs` asks for the logits of prompt positions inside the range as well.
    """

    slot: int
    sequence: SequenceView
    num_computed: int
    num_new: int
    sample: bool
    fresh: bool
    """First step of this sequence in this slot (new or resumed): the runner reads the whole block table."""
    want_prompt_logprobs: bool = False
    pool: bool = False
    """Embedding request: return the pooled hidden state instead of a token."""


@dataclass(frozen=True, slots=True)
class Step:
    id: int
    work: tuple[Work, ...]
    freed_slots: tuple[int, ...] = ()
    """Slots whose sequence left since the last step."""

    @property
    def num_tokens(self) -> int:
        return sum([work.num_new for work in self.work])


class SampledToken(NamedTuple):
    token_id: int
    logprob: float | None = None
    """Raw log-probability (before processors); always computed: audit and routing live on it."""
    top: tuple[tuple[int, float], ...] = ()
    """(token id, log-probability), most likely first, when asked for."""
    rank: int | None = None
    entropy: float | None = None
    """Nats; computed for the first 8 generated positions and for `score`."""
    margin: float | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """Keyed by slot. A slot with `sample=True` is in exactly one of `tokens` and `faults`."""

    tokens: Mapping[int, SampledToken] = field(default_factory=dict)
    prompt_logprobs: Mapping[int, Sequence[tuple[int, float, int, tuple[tuple[int, float], ...]]]] = field(
        default_factory=dict
    )
    """slot -> per position of the chunk: (token id, logprob, rank, top) of the *next* prompt token."""
    pooled: Mapping[int, Sequence[float]] = field(default_factory=dict)
    faults: Mapping[int, Exception] = field(default_factory=dict)
    """Errors that concern one sequence only (its grammar, its sampler row)."""
    host_s: float = 0.0
    """Seconds spent in Python outside kernels, for `host_ms_per_step`."""
    kernel_s: float = 0.0
    late_compiles: int = 0
    """Kernels compiled since the last step, which should have been compiled ahead."""


class Runner(Protocol):
    """Runs the model. One instance per engine, used from the engine thread only."""

    num_blocks: int
    block_size: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: frozenset[int]

    def execute(self, step: Step) -> StepResult:
        """Write KV for all work and sample where asked. An exception means that the whole step failed."""
        ...

    def release_weights(self) -> None: ...

    def restore_weights(self) -> None: ...

    def close(self) -> None: ...
