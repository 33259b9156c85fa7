"""One next token per row of logits, with the evidence that audit and routing live on.

Owns the parameters by slot (filled once, when a sequence arrives) and the choice of the cheapest correct path: rows
without processors are drawn from as they are. Log-probabilities are raw: before any processor and temperature. A draw
depends on (seed, position) alone. A fault in one row is that row's fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

import numpy as np
import torch
from torch import Tensor

from engine.errors import EngineError
from engine.execution.kernel_timer import KernelClock
from engine.execution.logits_processors import RowProcessor, contradiction, needs_processing, penalize
from engine.step import SampledToken, SequenceView, Work
from kernels.contracts import Ops, RowStats

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
        self._by_slot = (self._temperature, self._top_k, self._top_p, self._min_p, self._seeds)
        self._views = tuple(values.numpy() for values in self._by_slot)
        self._gathered: tuple[list[int], list[Tensor]] = ([], [])
        """Slots of the last draw and their parameters; valid until a slot gets others."""
        self._sampled_slots: set[int] = set()
        """Slots that draw; the others are greedy."""
        self._watched: set[int] = set()
        """Slots whose tokens are described beyond their log-probability."""
        self._processors: dict[int, RowProcessor] = {}
        self._masks = torch.zeros(max_seqs, -(-vocab_size // 32), dtype=torch.int32)
        self._mask_view = self._masks.numpy()

    def admit(self, slot: int, sequence: SequenceView) -> None:
        """Read a sequence's parameters when it takes a slot (new or resumed)."""
        self.release(slot)
        params = sequence.sampling
        temperature = max(params.temperature, _LEAST_TEMPERATURE) if params.temperature > 0 else 0.0
        seed = sequence.seed & (2**64 - 1)
        signed = seed if seed < 2**63 else seed - 2**64
        for view, value in zip(
            self._views, (temperature, params.top_k, params.top_p, params.min_p, signed), strict=True
        ):
            view[slot] = value
        self._gathered = ([], [])
        if temperature:
            self._sampled_slots.add(slot)
        if _is_watched(sequence):
            self._watched.add(slot)
        if needs_processing(sequence):
            self._processors[slot] = RowProcessor(sequence, self._eos, self._device)

    def release(self, slot: int) -> None:
        self._sampled_slots.discard(slot)
        self._watched.discard(slot)
        self._processors.pop(slot, None)

    def sample(self, work: Sequence[Work], logits: Tensor) -> tuple[dict[int, SampledToken], dict[int, Exception]]:
        """`logits` float32 [len(work), vocab], left unchanged. Gives tokens and faults by slot; a slot is in one."""
        faults: dict[int, Exception] = {}
        tokens: dict[int, SampledToken] = {}
        busy = [row for row, item in enumerate(work) if item.slot in self._processors] if self._processors else []
        plain = [row for row, item in enumerate(work) if item.slot not in self._processors] if busy else None
        if plain is None or plain:
            items = work if plain is None else [work[row] for row in plain]
            raw = logits if plain is None else _rows(logits, plain)
            ids, logprobs = self._draw(items, raw)
            self._describe(items, ids, logprobs, raw, tokens)
        if busy:
            changed = self._clock.run(torch.index_select, logits, 0, torch.tensor(busy, device=logits.device))
            busy, changed = self._process(work, busy, changed, faults)
        if busy:
            items = [work[row] for row in busy]
            self._describe(items, self._draw(items, changed)[0], None, _rows(logits, busy), tokens)
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
            processor = self._processors.get(slot)
            if processor is None or slot in faults:
                continue
            try:
                processor.apply(changed[index])
            except _ROW_FAULTS as error:
                faults[slot] = error
            else:
                active.append((index, processor))
        penalize(self._ops, changed, active)
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

    def _draw(self, items: Sequence[Work], logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """A token id for each item; with the log-probabilities where greedy rows gave them for free."""
        slots = [item.slot for item in items]
        if self._sampled_slots.isdisjoint(slots):
            return self._clock.run(self._ops.greedy, logits)
        if self._gathered[0] != slots:
            index = torch.tensor(slots)
            self._gathered = (slots, [values[index].to(self._device) for values in self._by_slot])
        temperature, top_k, top_p, min_p, seeds = self._gathered[1]
        positions = torch.tensor([len(item.sequence.token_ids) for item in items], device=self._device)
        uniforms = self._clock.run(self._ops.philox_uniform, seeds, positions)
        return self._clock.run(self._ops.sample, logits, temperature, top_k, top_p, min_p, uniforms), None

    def _describe(
        self,
        items: Sequence[Work],
        ids: Tensor,
        logprobs: Tensor | None,
        logits: Tensor,
        tokens: dict[int, SampledToken],
    ) -> None:
        """Add a token for each item. `logits` are its raw ones; `logprobs` is given where the most likely was taken."""
        watched = self._rows_watched(items)
        if logprobs is not None:
            _add(tokens, items, ids.tolist(), logprobs.tolist(), repeat(1))
            if not watched:
                return
            items, ids, logits = [items[row] for row in watched], ids[watched], _rows(logits, watched)
        topk = max(item.sequence.sampling.logprobs or 0 for item in items) if watched else 0
        stats = self._clock.run(self._ops.row_stats, logits, ids, topk)
        if watched:
            self._describe_watched(items, ids, stats, tokens)
        else:
            _add(tokens, items, ids.tolist(), stats.logprob.tolist(), stats.rank.tolist())

    def _describe_watched(
        self, items: Sequence[Work], ids: Tensor, stats: RowStats, tokens: dict[int, SampledToken]
    ) -> None:
        parts = (ids, stats.logprob, stats.rank, stats.entropy, stats.margin, stats.top_ids, stats.top_logprobs)
        for item, *values in zip(items, *(part.tolist() for part in parts), strict=True):
            token_id, logprob, rank, entropy, margin, top_ids, top_logprobs = values
            top: tuple[tuple[int, float], ...] = ()
            if wanted := item.sequence.sampling.logprobs:
                top = tuple(zip(top_ids[:wanted], top_logprobs[:wanted], strict=True))
            if _num_generated(item.sequence) >= NUM_OBSERVED_POSITIONS:
                entropy = margin = None
            tokens[item.slot] = SampledToken(token_id, logprob, top, rank, entropy, margin)

    def _rows_watched(self, items: Sequence[Work]) -> list[int]:
        """The items to describe; a slot that needs it no longer is dropped until it is admitted again."""
        if not self._watched:
            return []
        rows = [row for row, item in enumerate(items) if item.slot in self._watched]
        kept = [row for row in rows if _is_watched(items[row].sequence)]
        if len(kept) < len(rows):
            self._watched.difference_update(items[row].slot for row in set(rows) - set(kept))
        return kept


def _rows(logits: Tensor, rows: list[int]) -> Tensor:
    """The given rows, ascending; the tensor itself when they are all of it, to spare a copy of [rows, vocab]."""
    if len(rows) == logits.shape[0]:
        return logits
    return logits[torch.from_numpy(np.array(rows, dtype=np.int64)).to(logits.device)]


def _add(
    tokens: dict[int, SampledToken],
    items: Sequence[Work],
    ids: Iterable[int],
    logprobs: Iterable[float],
    ranks: Iterable[int],
) -> None:
    """Tokens without more detail: no loop in Python, because there is one for every running sequence and step."""
    tokens.update(zip([item.slot for item in items], map(SampledToken, ids, logprobs, repeat(()), ranks), strict=True))


def _num_generated(sequence: SequenceView) -> int:
    return len(sequence.token_ids) - sequence.num_prompt_tokens


def _is_watched(sequence: SequenceView) -> bool:
    return sequence.sampling.logprobs is not None or _num_generated(sequence) < NUM_OBSERVED_POSITIONS
