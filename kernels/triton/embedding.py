"""Rows of an embedding table. Tables of codes are widened row by row by the reference, in torch on the same device.

An id out of range gives a row of zeros: to find out on the host would stop the stream of the device at every step.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.contracts import KernelError, Weight
from kernels.reference.embedding import embedding as widened_embedding
from kernels.triton.launch import Constant, Pointer, Schedule, aligned, i64, kernel, launch

PIECE = 1024


@kernel
def gather_rows(
    ids: Pointer, table: Pointer, out: Pointer, rows: i64, WIDTH: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    chosen = tl.load(ids + row).to(tl.int64)
    inside = (column < WIDTH) & (chosen >= 0) & (chosen < rows)
    value = tl.load(table + chosen * WIDTH + column, mask=inside, other=0.0)
    tl.store(out + row * WIDTH + column, value.to(out.dtype.element_ty), mask=column < WIDTH)


def gather_constants(width: int) -> tuple[dict[str, Constant], Schedule]:
    return {"WIDTH": width, "BLOCK": min(PIECE, triton.next_power_of_2(width))}, Schedule(num_warps=4, num_stages=1)


def embedding(ids: Tensor, table: Weight, dtype: torch.dtype | None = None) -> Tensor:
    if not isinstance(table, Tensor):
        return widened_embedding(ids, table, dtype)
    if not table.is_contiguous():
        raise KernelError("embedding: the table is not contiguous")
    if ids.device.type == "cpu" and ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= table.shape[0]):
        span = f"[{int(ids.min())}, {int(ids.max())}]"
        raise KernelError(f"embedding: ids span {span}, the table has {table.shape[0]} rows")
    if not table.is_cuda:
        # A table that is read from a mapped file lies anywhere.
        table = aligned(table)
    width = table.shape[1]
    out = torch.empty(ids.shape[0], width, dtype=dtype or table.dtype, device=table.device)
    constants, schedule = gather_constants(width)
    pieces = triton.cdiv(width, int(constants["BLOCK"] or 1))
    arguments: dict[str, Tensor | int | float | None] = {"ids": ids, "table": table, "out": out, "rows": table.shape[0]}
    launch(gather_rows, (ids.shape[0], pieces), arguments, constants, schedule)
    return out
