"""A runner without a model: it keeps real paged "KV" (the tokens themselves) and checks every promise of a step.

The next token is a pure function of the tokens found in the cache and (when sampling) the seed. So a wrong
block table, a stale block or a lost token changes the output or raises, and equal inputs give equal outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

import numpy as np

from engine.step import SampledToken, Step, StepResult, Work

NextToken = Callable[[Sequence[int], Work], int]


def hashed(vocab_size: int) -> NextToken:
    """Pseudo-random text without special tokens: depends on all tokens, and on the seed unless greedy."""

    def next_token(tokens: Sequence[int], work: Work) -> int:
        seed = 0 if work.sequence.sampling.temperature == 0 else work.sequence.seed
        data = b"".join(t.to_bytes(4, "little") for t in tokens) + seed.to_bytes(8, "little")
        return int.from_bytes(blake2b(data, digest_size=4).digest(), "little") % min(vocab_size, 256)

    return next_token


class FakeRunner:
    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        max_model_len: int = 256,
        vocab_size: int = 258,
        eos_token_ids: frozenset[int] = frozenset({256}),
        next_token: NextToken | None = None,
        before_step: Callable[[Step], None] | None = None,
        logprob: float = -0.5,
    ) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.max_model_len, self.vocab_size, self.eos_token_ids = max_model_len, vocab_size, eos_token_ids
        self._next = next_token or hashed(vocab_size)
        self._before_step = before_step
        self._logprob = logprob
        self._kv: list[list[int | None]] = [[None] * block_size for _ in range(num_blocks)]
        self._tables: dict[int, list[int]] = {}
        self.steps: list[Step] = []
        self.keep_steps = False
        self.closed = False
        self.weights_loaded = True
        self.num_tokens = 0
        self.num_steps = 0
        self.row_faults: dict[str, Exception] = {}
        """request id -> fault reported for its rows."""

    def execute(self, step: Step) -> StepResult:
        if not self.weights_loaded:
            raise RuntimeError("the weights are released")
        if self._before_step is not None:
            self._before_step(step)
        if self.keep_steps:
            self.steps.append(step)
        self.num_steps += 1
        self.num_tokens += step.num_tokens
        if len({work.slot for work in step.work}) != len(step.work):
            raise RuntimeError("a slot is used twice in one step")
        for slot in step.freed_slots:
            self._tables.pop(slot, None)
        for work in step.work:
            self._write(work)
        tokens: dict[int, SampledToken] = {}
        pooled: dict[int, Sequence[float]] = {}
        prompt: dict[int, list[tuple[int, float, int, tuple[tuple[int, float], ...]]]] = {}
        faults: dict[int, Exception] = {}
        for work in step.work:
            seen = self._read(work)
            if work.sequence.request_id in self.row_faults:
                faults[work.slot] = self.row_faults[work.sequence.request_id]
                continue
            if work.want_prompt_logprobs:
                prompt[work.slot] = self._prompt_logprobs(work)
            if work.pool and work.sample:
                pooled[work.slot] = [float(sum(seen)), float(len(seen))]
            elif work.sample:
                tokens[work.slot] = self._sample(seen, work)
        return StepResult(tokens=tokens, prompt_logprobs=prompt, pooled=pooled, faults=faults)

    def _sample(self, seen: Sequence[int], work: Work) -> SampledToken:
        token = self._next(seen, work)
        if work.sequence.grammar is not None:
            token = self._allowed(work, token)
        wanted = work.sequence.sampling.logprobs or 0
        top = tuple(((token + i) % self.vocab_size, self._logprob - i) for i in range(wanted))
        return SampledToken(token, logprob=self._logprob, top=top, rank=1, entropy=1.5, margin=0.25)

    def _allowed(self, work: Work, wanted: int) -> int:
        """Some allowed token, chosen by the wanted one."""
        row = np.zeros(-(-self.vocab_size // 32), dtype=np.int32)
        work.sequence.grammar.fill_bitmask(row)
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")[: self.vocab_size]
        allowed = np.flatnonzero(bits)
        return int(allowed[wanted % len(allowed)])

    def _prompt_logprobs(self, work: Work) -> list[tuple[int, float, int, tuple[tuple[int, float], ...]]]:
        ids = work.sequence.token_ids
        end = min(work.num_computed + work.num_new, work.sequence.num_prompt_tokens - 1)
        return [(ids[p + 1], -float(p), 1, ()) for p in range(work.num_computed, end)]

    def _write(self, work: Work) -> None:
        sequence, table = work.sequence, list(work.sequence.block_table)
        known = self._tables.get(work.slot)
        if not work.fresh and (known is None or table[: len(known)] != known):
            raise RuntimeError("a block table changed without `fresh`")
        self._tables[work.slot] = table
        for position in range(work.num_computed, work.num_computed + work.num_new):
            block, offset = divmod(position, self.block_size)
            self._kv[table[block]][offset] = sequence.token_ids[position]

    def _read(self, work: Work) -> list[int]:
        end = work.num_computed + work.num_new
        table = work.sequence.block_table
        seen = [self._kv[table[p // self.block_size]][p % self.block_size] for p in range(end)]
        expected = work.sequence.token_ids[:end]
        if seen != expected:
            raise RuntimeError(f"the cache of {work.sequence.request_id} holds other tokens than its own")
        return expected

    def release_weights(self) -> None:
        self.weights_loaded = False

    def restore_weights(self) -> None:
        self.weights_loaded = True

    def close(self) -> None:
        self.closed = True
