"""Rows of an embedding table, plain or quantized."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.contracts import KernelError, QuantizedWeight, Weight
from kernels.reference.dequantize import dequantize


def embedding(ids: Tensor, table: Weight, dtype: torch.dtype | None = None) -> Tensor:
    rows = table.out_features if isinstance(table, QuantizedWeight) else table.shape[0]
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= rows):
        raise KernelError(f"embedding: ids span [{int(ids.min())}, {int(ids.max())}], the table has {rows} rows")
    if isinstance(table, QuantizedWeight):
        unique, inverse = torch.unique(ids, return_inverse=True)
        wide = dequantize(QuantizedWeight(table.data[unique], table.type, table.in_features))
        return wide[inverse].to(dtype or torch.float32)
    return table[ids].to(dtype or table.dtype)
