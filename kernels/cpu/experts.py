"""Mixtures of experts over the C++ products and gates; the sum of a row has a fixed order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from kernels.contracts import PackedExperts, Weight
from kernels.cpu.gated import gelu_tanh_mul, silu_mul
from kernels.cpu.linear import linear, pack_linear
from kernels.reference.experts import mix_with, pack_with


def pack_experts(
    experts: Iterable[tuple[Sequence[Weight], Weight]],
    dtype: torch.dtype,
    quantization: str | None = None,
    deterministic: bool = False,
    local: range | None = None,
) -> PackedExperts:
    return pack_with(pack_linear, experts, dtype, quantization, deterministic, local)


def experts(x: Tensor, ids: Tensor, shares: Tensor, packed: PackedExperts, activation: str = "silu") -> Tensor:
    gates = {"silu": silu_mul, "gelu_tanh": gelu_tanh_mul}
    return mix_with(linear, gates, x, ids, shares, packed, activation)
