"""One next token per row of logits, with the evidence that audit and routing live on.

Owns the parameters by slot (filled once, when a sequence arrives) and the choice of the cheapest correct path: rows
without processors are drawn from as they are. Log-probabilities are raw: before any processor and temperature. A draw
depends on (seed, position) alone. A fault in one row is that row's fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from engine.errors import EngineError, EngineFault
from engine.execution.host_copies import HostCopies
from engine.execution.kernel_timer import KernelClock
from engine.execution.logits_processors import RowProcessor, contradiction, needs_processing, penalize
from engine.step import SampledToken, SequenceView, Work
from kernels.contracts import Ops, RowStats

NUM_OBSERVED_POSITIONS = 8
"""Generated positions whose entropy and margin are reported."""
_LEAST_TEMPERATURE = 0.01
"""Below it, scaled logits overflow what float32 can tell apart; 0 itself is greedy."""
_UNSOUND = SampledToken(-1)
"""Stands for a row whose values were not finite, until all rows are known."""
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
        copies: HostCopies | None = None,
    ) -> None:
        self._ops, self._device, self._eos, self._clock = ops, device, eos_token_ids, clock
        self._copies = copies or HostCopies(device)
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

    def sample(
        self, work: Sequence[Work], logits: Tensor, sound: Tensor | None = None
    ) -> tuple[dict[int, SampledToken], dict[int, Exception]]:
        """`logits` float32 [len(work), vocab], left unchanged. Gives tokens and faults by slot; a slot is in one.

        Rows that are False in `sound` (bool, on the device) are faults; their logits hold no NaN all the same.
        """
        faults: dict[int, Exception] = {}
        tokens: dict[int, SampledToken] = {}
        busy = [row for row, item in enumerate(work) if item.slot in self._processors] if self._processors else []
        plain = [row for row, item in enumerate(work) if item.slot not in self._processors] if busy else None
        if plain is None or plain:
            items = work if plain is None else [work[row] for row in plain]
            raw = logits if plain is None else self._rows(logits, plain)
            ids, logprobs = self._draw(items, raw)
            flags = sound if sound is None or plain is None else self._rows(sound, plain)
            self._describe(items, ids, logprobs, raw, flags, tokens)
        if busy:
            changed = self._clock.run(torch.index_select, logits, 0, self._copies.send(busy))
            busy, changed = self._process(work, busy, changed, faults)
        if busy:
            items = [work[row] for row in busy]
            flags = None if sound is None else self._rows(sound, busy)
            self._describe(items, self._draw(items, changed)[0], None, self._rows(logits, busy), flags, tokens)
        for slot in [slot for slot, token in tokens.items() if token is _UNSOUND] if sound is not None else ():
            del tokens[slot]
            faults[slot] = not_finite()
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
        return [rows[index] for index in kept], self._rows(changed, kept)

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
        best = self._clock.run(torch.amax, self._rows(changed, masked), dim=1)
        possible = self._copies.fetch([best > float("-inf")])[0].tolist()
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
            rows_masked = self._copies.send(masked)
            self._clock.run(self._ops.apply_token_bitmask, changed, bits, rows_masked)
        return errors

    def _draw(self, items: Sequence[Work], logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """A token id for each item; with the log-probabilities where greedy rows gave them for free."""
        slots = [item.slot for item in items]
        if self._sampled_slots.isdisjoint(slots):
            return self._clock.run(self._ops.greedy, logits)
        if self._gathered[0] != slots:
            index = torch.tensor(slots)
            self._gathered = (slots, [self._copies.move(values[index]) for values in self._by_slot])
        temperature, top_k, top_p, min_p, seeds = self._gathered[1]
        positions = self._copies.send([len(item.sequence.token_ids) for item in items])
        uniforms = self._clock.run(self._ops.philox_uniform, seeds, positions)
        return self._clock.run(self._ops.sample, logits, temperature, top_k, top_p, min_p, uniforms), None

    def _describe(
        self,
        items: Sequence[Work],
        ids: Tensor,
        logprobs: Tensor | None,
        logits: Tensor,
        sound: Tensor | None,
        tokens: dict[int, SampledToken],
    ) -> None:
        """Add a token for each item. `logits` are its raw ones; `logprobs` is given where the most likely was taken.
        Everything that is asked for is computed before anything is looked at."""
        watched = self._rows_watched(items)
        parts = [ids]
        described, asked, raw = items, ids, logits
        if logprobs is not None:
            parts.append(logprobs)
            if watched and len(watched) < len(items):
                described = [items[row] for row in watched]
                asked, raw = ids[self._copies.send(watched)], self._rows(logits, watched)
        if watched or logprobs is None:
            topk = max(item.sequence.sampling.logprobs or 0 for item in described) if watched else 0
            parts += _evidence(self._clock.run(self._ops.row_stats, raw, asked, topk), bool(watched))
        found = self._copies.fetch(parts if sound is None else [*parts, sound])
        values = [part.tolist() for part in found]
        chosen, rest = values[0], values[1 : len(parts)]
        if logprobs is not None:
            if len(watched) < len(items):
                _add(tokens, items, chosen, rest[0], repeat(1))
            rest = rest[1:]
        if watched:
            ids_described = chosen if described is items else [chosen[row] for row in watched]
            _add_described(tokens, described, ids_described, rest)
        elif logprobs is None:
            _add(tokens, items, chosen, *rest)
        if sound is not None:
            tokens.update((item.slot, _UNSOUND) for item, fine in zip(items, values[-1], strict=True) if not fine)

    def _rows(self, values: Tensor, rows: list[int]) -> Tensor:
        """The given rows, ascending; the tensor itself when they are all of it, to spare a copy of [rows, vocab]."""
        return values if len(rows) == values.shape[0] else values[self._copies.send(rows)]

    def _rows_watched(self, items: Sequence[Work]) -> list[int]:
        """The items to describe; a slot that needs it no longer is dropped until it is admitted again."""
        if not self._watched:
            return []
        rows = [row for row, item in enumerate(items) if item.slot in self._watched]
        kept = [row for row in rows if _is_watched(items[row].sequence)]
        if len(kept) < len(rows):
            self._watched.difference_update(items[row].slot for row in set(rows) - set(kept))
        return kept


def not_finite() -> EngineFault:
    return EngineFault("the model gave values that are not finite", hint="try `--dtype float32`")


def _evidence(stats: RowStats, watched: bool) -> list[Tensor]:
    if not watched:
        return [stats.logprob, stats.rank]
    return [stats.logprob, stats.rank, stats.entropy, stats.margin, stats.top_ids, stats.top_logprobs]


def _add_described(
    tokens: dict[int, SampledToken], items: Sequence[Work], ids: Iterable[int], evidence: Sequence[Iterable[Any]]
) -> None:
    for item, token_id, logprob, rank, entropy, margin, top_ids, top_logprobs in zip(
        items, ids, *evidence, strict=True
    ):
        top: tuple[tuple[int, float], ...] = ()
        if wanted := item.sequence.sampling.logprobs:
            top = tuple(zip(top_ids[:wanted], top_logprobs[:wanted], strict=True))
        if _num_generated(item.sequence) >= NUM_OBSERVED_POSITIONS:
            entropy = margin = None
        tokens[item.slot] = SampledToken(token_id, logprob, top, rank, entropy, margin)


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
