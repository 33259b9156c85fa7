"""One next token per row of logits, with the evidence that audit and routing live on.

Owns the parameters by slot (filled once, when a sequence arrives) and the choice of the cheapest correct path: rows
without processors are drawn from as they are. Log-probabilities are raw: before any processor and temperature. A draw
depends on (seed, position) alone. A fault in one row is that row's fault.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.errors import EngineError
from engine.processors import RowProcessor, contradiction, needs_processing, penalise
from engine.step import SampledToken, SequenceView, Work
from engine.stopwatch import KernelClock
from kernels.contracts import Ops

NUM_OBSERVED_POSITIONS = 8
"""Generated positions whose entropy and margin are reported."""
_LEAST_TEMPERATURE = 0.01
"""Below it, scaled logits overflow what float32 can tell apart; 0 itself is greedy."""
_ROW_FAULTS = (EngineError, ValueError, RuntimeError, IndexError, KeyError, TypeError, OverflowError)
"""What one row's grammar or parameters may raise. Anything else is a fault of the engine and fails the step."""


class Sampler:
    """`max_seqs` slots over a vocabulary of `vocab_size`. Used from the engine thread only."""

    def __init__(
        self,
        ops: Ops,
        vocab_size: int,
        max_seqs: int,
        eos_token_ids: frozenset[int],
        device: torch.device,
        clock: KernelClock,
    ) -> None:
        self._ops, self._device, self._eos, self._clock = ops, device, eos_token_ids, clock
        self._temperature = torch.zeros(max_seqs)
        self._top_k = torch.zeros(max_seqs, dtype=torch.int32)
        self._top_p = torch.ones(max_seqs)
        self._min_p = torch.zeros(max_seqs)
        self._seeds = torch.zeros(max_seqs, dtype=torch.int64)
        self._greedy = [True] * max_seqs
        self._processors: list[RowProcessor | None] = [None] * max_seqs
        self._masks = torch.zeros(max_seqs, -(-vocab_size // 32), dtype=torch.int32)
        self._mask_view = self._masks.numpy()

    def admit(self, slot: int, sequence: SequenceView) -> None:
        """Read a sequence's parameters when it takes a slot (new or resumed)."""
        params = sequence.sampling
        heat = params.temperature
        self._temperature[slot] = max(heat, _LEAST_TEMPERATURE) if heat > 0 else 0.0
        self._top_k[slot], self._top_p[slot], self._min_p[slot] = params.top_k, params.top_p, params.min_p
        seed = sequence.seed & (2**64 - 1)
        self._seeds[slot] = seed if seed < 2**63 else seed - 2**64
        self._greedy[slot] = heat <= 0
        busy = needs_processing(sequence)
        self._processors[slot] = RowProcessor(sequence, self._eos, self._device) if busy else None

    def release(self, slot: int) -> None:
        self._processors[slot] = None

    def sample(self, work: Sequence[Work], logits: Tensor) -> tuple[dict[int, SampledToken], dict[int, Exception]]:
        """`logits` float32 [len(work), vocab], left unchanged. Gives tokens and faults by slot; a slot is in one."""
        faults: dict[int, Exception] = {}
        plain = [row for row, item in enumerate(work) if self._processors[item.slot] is None]
        busy = [row for row, item in enumerate(work) if self._processors[item.slot] is not None]
        drawn: list[tuple[list[int], Tensor, Tensor | None]] = []
        if plain:
            drawn.append((plain, *self._draw(work, plain, _rows(logits, plain))))
        if busy:
            changed = self._clock.run(torch.index_select, logits, 0, torch.tensor(busy, device=logits.device))
            busy, changed = self._process(work, busy, changed, faults)
            if busy:
                ids, _ = self._draw(work, busy, changed)
                drawn.append((busy, ids, None))
        tokens: dict[int, SampledToken] = {}
        for rows, ids, logprobs in drawn:
            self._describe(work, rows, ids, logprobs, logits, tokens)
        return tokens, faults

    def _process(
        self, work: Sequence[Work], rows: list[int], changed: Tensor, faults: dict[int, Exception]
    ) -> tuple[list[int], Tensor]:
        """Apply masks and processors to `changed` in place; drop the rows that failed or allow no token."""
        for index, error in self._mask_grammars(work, rows, changed).items():
            faults[work[rows[index]].slot] = error
        active: list[tuple[int, RowProcessor]] = []
        for index, row in enumerate(rows):
            slot = work[row].slot
            processor = self._processors[slot]
            if processor is None or slot in faults:
                continue
            try:
                processor.apply(changed[index])
            except _ROW_FAULTS as error:
                faults[slot] = error
            else:
                active.append((index, processor))
        penalise(changed, active)
        self._refuse_impossible(work, rows, changed, active, faults)
        kept = [index for index, row in enumerate(rows) if work[row].slot not in faults]
        return [rows[index] for index in kept], _rows(changed, kept)

    def _refuse_impossible(
        self,
        work: Sequence[Work],
        rows: list[int],
        changed: Tensor,
        active: list[tuple[int, RowProcessor]],
        faults: dict[int, Exception],
    ) -> None:
        masked = [index for index, processor in active if processor.may_forbid]
        if not masked:
            return
        best = self._clock.run(torch.amax, _rows(changed, masked), dim=1)
        possible = (best > float("-inf")).tolist()
        for index, fine in zip(masked, possible, strict=True):
            if not fine:
                faults[work[rows[index]].slot] = contradiction(work[rows[index]].sequence)

    def _mask_grammars(self, work: Sequence[Work], rows: list[int], changed: Tensor) -> dict[int, Exception]:
        errors: dict[int, Exception] = {}
        masked: list[int] = []
        for index, row in enumerate(rows):
            grammar = work[row].sequence.grammar
            if grammar is None:
                continue
            try:
                grammar.fill_bitmask(self._mask_view[len(masked)])
            except _ROW_FAULTS as error:
                errors[index] = error
            else:
                masked.append(index)
        if masked:
            bits = self._masks[: len(masked)].to(self._device)
            rows_masked = torch.tensor(masked, device=self._device)
            self._clock.run(self._ops.apply_token_bitmask, changed, bits, rows_masked)
        return errors

    def _draw(self, work: Sequence[Work], rows: list[int], logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Token ids of `rows`; with their log-probabilities where greedy rows gave them for free."""
        slots = [work[row].slot for row in rows]
        if all(self._greedy[slot] for slot in slots):
            return self._clock.run(self._ops.greedy, logits)
        index = torch.tensor(slots)
        positions = torch.tensor([len(work[row].sequence.token_ids) for row in rows])
        by_slot = (self._temperature, self._top_k, self._top_p, self._min_p, self._seeds)
        heat, top_k, top_p, min_p, seeds = (values[index].to(self._device) for values in by_slot)
        uniforms = self._clock.run(self._ops.philox_uniform, seeds, positions.to(self._device))
        return self._clock.run(self._ops.sample, logits, heat, top_k, top_p, min_p, uniforms), None

    def _describe(
        self,
        work: Sequence[Work],
        rows: list[int],
        ids: Tensor,
        logprobs: Tensor | None,
        logits: Tensor,
        tokens: dict[int, SampledToken],
    ) -> None:
        id_list = ids.tolist()
        detailed = [i for i, row in enumerate(rows) if logprobs is None or _is_observed(work[row])]
        if logprobs is not None:
            for row, token_id, logprob in zip(rows, id_list, logprobs.tolist(), strict=True):
                tokens[work[row].slot] = SampledToken(token_id, logprob, rank=1)
        if not detailed:
            return
        where = [rows[i] for i in detailed]
        topk = max(work[row].sequence.sampling.logprobs or 0 for row in where)
        chosen = ids if len(detailed) == len(rows) else ids[detailed]
        stats = self._clock.run(self._ops.row_stats, _rows(logits, where), chosen, topk)
        lists = (stats.logprob, stats.rank, stats.entropy, stats.margin, stats.top_ids, stats.top_logprobs)
        for i, row, *values in zip(detailed, where, *(part.tolist() for part in lists), strict=True):
            logprob, rank, entropy, margin, top_ids, top_logprobs = values
            early = _num_generated(work[row].sequence) < NUM_OBSERVED_POSITIONS
            wanted = work[row].sequence.sampling.logprobs or 0
            tokens[work[row].slot] = SampledToken(
                token_id=id_list[i],
                logprob=logprob,
                top=tuple(zip(top_ids[:wanted], top_logprobs[:wanted], strict=True)),
                rank=rank,
                entropy=entropy if early else None,
                margin=margin if early else None,
            )


def _rows(logits: Tensor, rows: list[int]) -> Tensor:
    """The given rows; the tensor itself when they are all of it, to spare a copy of [rows, vocab]."""
    if rows == list(range(logits.shape[0])):
        return logits
    return logits[torch.from_numpy(np.array(rows, dtype=np.int64)).to(logits.device)]


def _num_generated(sequence: SequenceView) -> int:
    return len(sequence.token_ids) - sequence.num_prompt_tokens


def _is_observed(item: Work) -> bool:
    return item.sequence.sampling.logprobs is not None or _num_generated(item.sequence) < NUM_OBSERVED_POSITIONS
