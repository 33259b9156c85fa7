"""A step's work as tensors, built in arrays that live as long as the engine.

Owns the persistent rows by slot (block tables) and the per-step rows (token ids, positions, KV slots, geometry). Each
step copies only what changed: new tokens and new blocks. NumPy views share memory with the torch tensors, so that
filling them costs no dispatch. Must not know layers or sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import EngineFault
from engine.step import Step, Work


@dataclass(frozen=True, slots=True)
class StepTensors:
    """Views of the persistent arrays, valid until the next step. Rows follow the order of `step.work`.

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


class BatchArrays:
    """Sized once from the engine's limits: `max_tokens` rows a step, `max_seqs` slots, `max_blocks` a sequence."""

    def __init__(self, max_tokens: int, max_seqs: int, max_blocks: int, block_size: int, device: torch.device) -> None:
        self._block_size, self._device = block_size, device
        self._token_ids, self._token_view = _array(max_tokens, torch.int64)
        self._positions, self._position_view = _array(max_tokens, torch.int64)
        self._slots, self._slot_view = _array(max_tokens, torch.int64)
        self._query_start, self._query_view = _array(max_seqs + 1, torch.int32)
        self._kv_len, self._kv_view = _array(max_seqs, torch.int32)
        self._tables, self._table_view = _array(max_seqs * max_blocks, torch.int32)
        self._by_slot: NDArray[np.int32] = np.zeros((max_seqs, max_blocks), dtype=np.int32)
        self._known_blocks = [0] * max_seqs

    def fill(self, step: Step) -> StepTensors:
        """Raises EngineFault when a table is too short for the tokens it must hold: a scheduler error."""
        work = step.work
        count = len(work)
        starts, new = [0] * (count + 1), [0] * count
        computed, slots = [0] * count, [0] * count
        tokens, row = self._token_view, 0
        for index, item in enumerate(work):
            first, size = item.num_computed, item.num_new
            ids = item.sequence.token_ids
            if size == 1:
                tokens[row] = ids[first]
            else:
                tokens[row : row + size] = ids[first : first + size]
            self._update_table(item)
            computed[index], new[index], slots[index] = first, size, item.slot
            row += size
            starts[index + 1] = row
        return self._geometry(row, starts, new, computed, slots)

    def _update_table(self, item: Work) -> None:
        table, slot = item.sequence.block_table, item.slot
        known = 0 if item.fresh else self._known_blocks[slot]
        if len(table) > known:
            self._by_slot[slot, known : len(table)] = table[known:]
        self._known_blocks[slot] = len(table)
        if len(table) * self._block_size < item.num_computed + item.num_new:
            raise EngineFault(f"slot {slot} has {len(table)} blocks for {item.num_computed + item.num_new} tokens")

    def _geometry(
        self, rows: int, starts: list[int], new: Sequence[int], computed: Sequence[int], slots: Sequence[int]
    ) -> StepTensors:
        count, size = len(new), self._block_size
        sizes, offsets = np.array(new), np.array(computed)
        self._query_view[: count + 1] = starts
        lengths = offsets + sizes
        self._kv_view[:count] = lengths
        width = -(-int(lengths.max(initial=1)) // size)
        tables = self._table_view[: count * width].reshape(count, width)
        np.take(self._by_slot[:, :width], slots, axis=0, out=tables)

        item_of_row = np.repeat(np.arange(count), sizes)
        positions = self._position_view[:rows]
        positions[:] = np.arange(rows) + (offsets - np.array(starts[:-1]))[item_of_row]
        self._slot_view[:rows] = tables[item_of_row, positions // size].astype(np.int64) * size + positions % size
        return StepTensors(
            token_ids=self._move(self._token_ids[:rows]),
            positions=self._move(self._positions[:rows]),
            slot_mapping=self._move(self._slots[:rows]),
            query_start=self._move(self._query_start[: count + 1]),
            kv_len=self._move(self._kv_len[:count]),
            block_tables=self._move(self._tables[: count * width].view(count, width)),
            row_starts=starts,
        )

    def _move(self, tensor: Tensor) -> Tensor:
        # Not `non_blocking`: the next step writes to the same host memory, perhaps before this copy has been read.
        return tensor.to(self._device)


def _array(size: int, dtype: torch.dtype) -> tuple[Tensor, NDArray[np.generic]]:
    """A host tensor and the NumPy view of the same memory; pinned where a GPU will copy from it."""
    tensor = torch.zeros(size, dtype=dtype, pin_memory=torch.cuda.is_available())
    return tensor, tensor.numpy()
