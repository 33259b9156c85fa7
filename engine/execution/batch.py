"""A step's work as tensors, built in arrays that live as long as the engine.

Owns the persistent rows by slot (block tables) and the per-step rows (token ids, positions, KV slots, geometry). Each
step copies only what changed: new tokens and new blocks. Where every sequence of the last step decodes one more token,
which is nearly always, the rows are moved on by one instead of being laid out again. NumPy views share memory with the
torch tensors, so that filling them costs no dispatch. They lie in one buffer,
which a GPU gets in one copy. Must not know layers or sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import EngineFault
from engine.execution.step_buffer import CudaDevice, Device, StepBuffer
from engine.step import Step, Work


@dataclass(frozen=True, slots=True)
class StepTensors:
    """Views of the persistent arrays, to be read until the next step. Rows follow the order of `step.work`.

    int32: `query_start` [work + 1]; `kv_len` [work], after this step's writes; `block_tables` [work, blocks].
    """

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    query_start: Tensor
    kv_len: Tensor
    block_tables: Tensor
    row_starts: list[int]
    """First row of each work item, and the number of rows at the end."""
    last_rows: Tensor | None = None
    """int64, ascending: the last row of each item that gets a next token; None where that is every row."""


class BatchArrays:
    """Sized once from the engine's limits: `max_tokens` rows a step, `max_seqs` slots, `max_blocks` a sequence."""

    def __init__(
        self,
        max_tokens: int,
        max_seqs: int,
        max_blocks: int,
        block_size: int,
        device: torch.device,
        transfers: Device | None = None,
    ) -> None:
        """`transfers` are those of `device` unless given."""
        self._block_size = block_size
        if transfers is None and device.type == "cuda":
            transfers = CudaDevice(device)
        self._buffer = StepBuffer(
            {
                "query_start": (max_seqs + 1, torch.int32),
                "kv_len": (max_seqs, torch.int32),
                "last_rows": (max_seqs, torch.int64),
                "token_ids": (max_tokens, torch.int64),
                "positions": (max_tokens, torch.int64),
                "slot_mapping": (max_tokens, torch.int64),
                "block_tables": (max_seqs * max_blocks, torch.int32),
            },
            transfers,
        )
        views = {name: tensor.numpy() for name, tensor in self._buffer.host.items()}
        self._token_view, self._position_view = views["token_ids"], views["positions"]
        self._slot_view, self._last_view = views["slot_mapping"], views["last_rows"]
        self._query_view, self._kv_view, self._table_view = views["query_start"], views["kv_len"], views["block_tables"]
        self._by_slot: NDArray[np.int32] = np.zeros((max_seqs, max_blocks), dtype=np.int32)
        self._known_blocks = [0] * max_seqs
        self._decodes: _Decodes | None = None
        self._all_sampled = True
        """Whether every item of this step gets a next token."""

    def fill(self, step: Step) -> StepTensors:
        """Raises EngineFault when a table is too short for the tokens it must hold: a scheduler error."""
        before, self._decodes = self._decodes, None
        work = step.work
        grown = self._update_tables(work)
        slots, computed = [item.slot for item in work], [item.num_computed for item in work]
        if max([item.num_new for item in work]) > 1:
            return self._send(work, self._lay_out(work, slots, computed))
        if before is not None and before.continue_with(slots, computed, self._block_size):
            self._move_on(work, grown, before)
        else:
            before = _Decodes(slots, computed, self._lay_out(work, slots, computed))
        self._decodes = before
        return self._send(work, before.tensors)

    def _update_tables(self, work: Sequence[Work]) -> list[int]:
        """Copy new blocks to the rows by slot; gives the items that have some."""
        known, size, grown = self._known_blocks, self._block_size, []
        self._all_sampled = True
        for index, (slot, sequence, start, count, sample, fresh, _, pool) in enumerate(work):
            if pool or not sample:
                self._all_sampled = False
            table = sequence.block_table
            length = len(table)
            if fresh or known[slot] != length:
                seen = 0 if fresh else known[slot]
                self._by_slot[slot, seen:length] = table[seen:]
                known[slot] = length
                grown.append(index)
            if length * size < start + count:
                raise EngineFault(f"slot {slot} has {length} blocks for {start + count} tokens")
        return grown

    def _move_on(self, work: Sequence[Work], grown: list[int], decodes: _Decodes) -> None:
        """Every sequence is one token further than in the last step, which these arrays still hold."""
        count, size = len(work), self._block_size
        self._token_view[:count] = [item.sequence.token_ids[item.num_computed] for item in work]
        for view in (self._position_view, self._slot_view, self._kv_view):
            np.add(view[:count], 1, out=view[:count])
        if grown:
            tables = self._table_view[: count * decodes.width].reshape(count, decodes.width)
            for index in grown:
                item = work[index]
                tables[index] = self._by_slot[item.slot, : decodes.width]
                block = item.sequence.block_table[item.num_computed // size]
                self._slot_view[index] = block * size + item.num_computed % size

    def _lay_out(self, work: Sequence[Work], slots: list[int], computed: list[int]) -> StepTensors:
        count, size = len(work), self._block_size
        sizes, offsets = np.array([item.num_new for item in work]), np.array(computed)
        starts = [0, *np.cumsum(sizes).tolist()]
        rows = starts[-1]
        for row, item in zip(starts, work, strict=False):
            first, end = item.num_computed, item.num_computed + item.num_new
            self._token_view[row : row + item.num_new] = item.sequence.token_ids[first:end]
        self._query_view[: count + 1] = starts
        lengths = offsets + sizes
        self._kv_view[:count] = lengths
        width = -(-int(lengths.max()) // size)
        tables = self._table_view[: count * width].reshape(count, width)
        tables[:] = self._by_slot[np.array(slots), :width]

        item_of_row = np.repeat(np.arange(count), sizes)
        positions = self._position_view[:rows]
        positions[:] = np.arange(rows) + (offsets - np.array(starts[:-1]))[item_of_row]
        self._slot_view[:rows] = tables[item_of_row, positions // size].astype(np.int64) * size + positions % size
        device = self._buffer.device
        return StepTensors(
            token_ids=device["token_ids"][:rows],
            positions=device["positions"][:rows],
            slot_mapping=device["slot_mapping"][:rows],
            query_start=device["query_start"][: count + 1],
            kv_len=device["kv_len"][:count],
            block_tables=device["block_tables"][: count * width].view(count, width),
            row_starts=starts,
        )

    def _send(self, work: Sequence[Work], tensors: StepTensors) -> StepTensors:
        """Add the rows that get a next token, and copy the step to the device."""
        if not self._all_sampled or tensors.row_starts[-1] > len(work):
            ends = zip(tensors.row_starts[1:], work, strict=True)
            last = [end - 1 for end, item in ends if item.sample and not item.pool]
            self._last_view[: len(last)] = last
            tensors = replace(tensors, last_rows=self._buffer.device["last_rows"][: len(last)])
        self._buffer.upload("block_tables", tensors.block_tables.numel())
        return tensors


class _Decodes:
    """A step in which each sequence computed one token: what the arrays hold, and what may follow without a layout."""

    def __init__(self, slots: list[int], computed: list[int], tensors: StepTensors) -> None:
        self.tensors = tensors
        self.width = tensors.block_tables.shape[1]
        self._slots = slots
        self._next = [position + 1 for position in computed]

    def continue_with(self, slots: list[int], computed: list[int], block_size: int) -> bool:
        """Whether such a step is the very next token of the same rows, in tables of the same width; if so it is taken
        for the last step from now on."""
        if computed != self._next or slots != self._slots or max(computed) >= self.width * block_size:
            return False
        self._next = [position + 1 for position in computed]
        return True
