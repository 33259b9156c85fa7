"""The source of a layer's weights: checkpoint tensors packed for the chosen back end, device and precision.

Owns the choice between dense and quantized reading. Knows the ops' `pack_linear`, no family and no forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.weights.loader import Checkpoint
from kernels.contracts import KernelError, Ops, PackedLinear, Weight


@dataclass(frozen=True, slots=True)
class WeightSource:
    """`quantization` None keeps dense weights in `dtype`; `gguf` keeps the file's codes; others quantize on load."""

    checkpoint: Checkpoint
    ops: Ops
    device: torch.device
    dtype: torch.dtype
    quantization: str | None = None

    def vector(self, name: str, size: int, dtype: torch.dtype | None = None) -> Tensor:
        return self.checkpoint.take(name, (size,), dtype or self.dtype).to(self.device)

    def matrix(self, name: str, rows: int, columns: int) -> Weight:
        """A weight for `pack_linear` or `embedding`."""
        if self.quantization == "gguf":
            codes = self.checkpoint.take_codes(name, (rows, columns))
            return replace(codes, data=codes.data.to(self.device))
        return self.checkpoint.take(name, (rows, columns), self.dtype).to(self.device)

    def linear(self, parts: Sequence[tuple[str, int]], columns: int, bias: bool = False) -> PackedLinear:
        """Matrices `name.weight [rows, columns]` stacked along their rows into one product (fused qkv, gate_up)."""
        weights = [self.matrix(f"{name}.weight", rows, columns) for name, rows in parts]
        stacked_bias = torch.cat([self.vector(f"{name}.bias", rows) for name, rows in parts]) if bias else None
        return self.pack(weights, stacked_bias)

    def dense_linear(self, name: str, rows: int, columns: int) -> PackedLinear:
        """Never quantized: for a router, whose rounding would change which experts run."""
        weight = self.checkpoint.take(f"{name}.weight", (rows, columns), self.dtype).to(self.device)
        return self.ops.pack_linear(weight, None, self.dtype)

    def pack(self, weights: Sequence[Weight], bias: Tensor | None = None) -> PackedLinear:
        try:
            return self.ops.pack_linear(list(weights), bias, self.dtype, self.quantization)
        except KernelError as error:
            raise UnsupportedModel(f"a matrix of this model cannot be packed: {error}") from error
