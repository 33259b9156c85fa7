"""One choice of one request while it lives: tokens, blocks, accounting. Implements `step.SequenceView`.

There is no prefill or decode phase: `num_computed` chases `num_tokens`. A preempted sequence keeps its tokens, seed,
grammar state and counters and only loses blocks and slot, so resuming it is a longer prefill and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from engine.requests import EngineUsage, FinishReason, SamplingParams


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Kind(Enum):
    GENERATE = "generate"
    SCORE = "score"
    """One prefill, then the statistics of the first token; the token itself is dropped."""
    EMBED = "embed"


class Consumption:
    """The usage of a request so far, also when it is abandoned. Written by the engine thread, read from any."""

    def __init__(self) -> None:
        self.sequences: tuple[Sequence, ...] = ()

    def so_far(self) -> EngineUsage:
        """Prompt tokens that were prefilled (0 while it only waits) and the tokens made, read or not."""
        sequences = self.sequences
        if not sequences:
            return EngineUsage(0, 0)
        return EngineUsage(
            prompt_tokens=max(s.prefilled for s in sequences),
            completion_tokens=sum(max(0, s.num_output) for s in sequences),
            cached_tokens=max(0, sequences[0].num_cached),
        )


@dataclass(slots=True, eq=False)
class Sequence:
    """Mutable, owned by the scheduler; everybody else reads. `order` is the arrival number, unique in an engine."""

    request_id: str
    choice: int
    seed: int
    sampling: SamplingParams
    token_ids: list[int]
    num_prompt_tokens: int
    max_tokens: int
    """Generated tokens at which it ends with `length`; resolved, so that prompt + max_tokens fit the window."""
    order: int
    arrived_at: float
    kind: Kind = Kind.GENERATE
    block_table: list[int] = field(default_factory=list)
    grammar: Any = None
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    salt: bytes | None = None
    adapter: str | None = None
    share_key: str = ""
    share_weight: float = 1.0
    priority: int = 0
    deadline_s: float | None = None
    want_prompt_logprobs: bool = False
    suspect: bool = False
    """Equal work was in a step that killed the loop: it shares no step with others until it has ended well."""

    status: Status = Status.WAITING
    slot: int = -1
    fresh: bool = True
    """True until the runner has seen it in its present slot."""
    num_computed: int = 0
    """Tokens whose KV is in the cache."""
    num_prefilled: int = 0
    """Prompt tokens that had KV when it last gave its blocks back."""
    num_cached: int = -1
    """Prompt tokens found in the prefix cache when first admitted; -1 before. Later hits are its own."""
    block_keys: list[bytes] = field(default_factory=list)
    """Chain keys of the leading full blocks, computed once; tokens only grow, so they never change."""
    num_registered: int = 0
    """Leading blocks of the present table that are published in the prefix cache."""
    preemptions: int = 0
    displaced: bool = False
    """Gave its slot to a share that had none; happens at most once."""
    admitted_at: float | None = None
    first_token_at: float | None = None
    finished_at: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    repetition: Any = None
    """What detects a loop, where the request asks for that."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def prefilled(self) -> int:
        """Most prompt tokens that ever had KV at once, computed or found. Safe to read from any thread."""
        return max(self.num_prefilled, min(self.num_computed, self.num_prompt_tokens))

    @property
    def reads_cache(self) -> bool:
        """Prompt log-probabilities and pooled states need every position, so those sequences never skip one."""
        return not self.want_prompt_logprobs and self.kind is not Kind.EMBED

    @property
    def remaining(self) -> int:
        """Known tokens without KV: 1 for a decoding sequence, more while the prompt (or a resume) is prefilled."""
        return len(self.token_ids) - self.num_computed
