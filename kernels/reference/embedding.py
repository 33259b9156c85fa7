"""Rows of an embedding table, plain or quantized."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.contracts import FloatWeight, KernelError, Weight
from kernels.reference.dequantize import dequantize, rows_of


def embedding(ids: Tensor, table: Weight, dtype: torch.dtype | None = None) -> Tensor:
    rows = table.shape[0] if isinstance(table, Tensor) else table.out_features
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= rows):
        raise KernelError(f"embedding: ids span [{int(ids.min())}, {int(ids.max())}], the table has {rows} rows")
    if isinstance(table, FloatWeight) and table.block is not None:
        return dequantize(table)[ids].to(dtype or torch.float32)
    if not isinstance(table, Tensor):
        unique, inverse = torch.unique(ids, return_inverse=True)
        return dequantize(rows_of(table, unique))[inverse].to(dtype or torch.float32)
    return table[ids].to(dtype or table.dtype)
