"""The source of a layer's weights: checkpoint tensors packed for the chosen back end, device and precision.

Owns the choice between dense and quantized reading. Knows the ops' `pack_linear`, no family and no forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.weights.loader import Checkpoint
from engine.weights.stacking import stackable
from kernels.contracts import (
    FloatWeight,
    IntWeight,
    KernelError,
    Ops,
    PackedExperts,
    PackedLinear,
    QuantizedWeight,
    Weight,
)
from kernels.reference.dequantize import dequantize


@dataclass(frozen=True, slots=True)
class WeightSource:
    """`quantization` None keeps dense weights in `dtype`; `gguf` keeps the file's codes; others quantize on load.

    A checkpoint that is stored quantized keeps its codes, and its dense matrices stay dense.
    """

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
            return on_device(codes, self.device)
        return on_device(self.checkpoint.take_weight(name, (rows, columns), self.dtype), self.device)

    def linear(self, parts: Sequence[tuple[str, int]], columns: int, bias: bool = False) -> PackedLinear:
        """Matrices `name.weight [rows, columns]` stacked along their rows into one product (fused qkv, gate_up)."""
        weights = [self.matrix(f"{name}.weight", rows, columns) for name, rows in parts]
        stacked_bias = torch.cat([self.vector(f"{name}.bias", rows) for name, rows in parts]) if bias else None
        return self.pack(weights, stacked_bias)

    def dense_linear(self, name: str, rows: int, columns: int) -> PackedLinear:
        """Never quantized: for a router, whose rounding would change which experts run."""
        stored = self.checkpoint.take_weight(f"{name}.weight", (rows, columns), self.dtype)
        weight = stored if isinstance(stored, Tensor) else dequantize(stored).to(self.dtype)
        return self.ops.pack_linear(weight.to(self.device), None, self.dtype)

    def experts(self, names: Sequence[tuple[str, ...]], hidden: int, size: int) -> PackedExperts:
        """Gated blocks; each name is those of gate, up and down, without `.weight`. One expert is read at a time."""

        def read() -> Iterator[tuple[list[Weight], Weight]]:
            for gate, up, down in names:
                pair = [self.matrix(f"{name}.weight", size, hidden) for name in (gate, up)]
                yield stackable(pair, self.dtype), self.matrix(f"{down}.weight", hidden, size)

        try:
            return self.ops.pack_experts(read(), self.dtype, self.quantization)
        except KernelError as error:
            raise UnsupportedModel(f"the experts of this model cannot be packed: {error}") from error

    def pack(self, weights: Sequence[Weight], bias: Tensor | None = None) -> PackedLinear:
        parts = stackable(weights, self.dtype)
        coded = any(isinstance(part, (IntWeight, FloatWeight)) for part in parts)
        try:
            return self.ops.pack_linear(parts, bias, self.dtype, None if coded else self.quantization)
        except KernelError as error:
            raise UnsupportedModel(f"a matrix of this model cannot be packed: {error}") from error


def on_device(weight: Weight, device: torch.device) -> Weight:
    """Codes stay where they are for the device `meta`: how they are packed depends on them."""
    if isinstance(weight, Tensor):
        return weight.to(device)
    if device.type == "meta":
        return weight
    if isinstance(weight, QuantizedWeight):
        return replace(weight, data=weight.data.to(device))
    moved = replace(weight, codes=weight.codes.to(device), scale=weight.scale.to(device))
    if isinstance(moved, FloatWeight):
        return moved
    zero = None if moved.zero is None else moved.zero.to(device)
    return replace(moved, zero=zero, columns=None if moved.columns is None else moved.columns.to(device))
