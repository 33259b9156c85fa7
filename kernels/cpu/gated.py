"""Gated activations. Formula: `kernels/reference`."""

from __future__ import annotations

from torch import Tensor

from kernels.contracts import check_even
from kernels.cpu.library import is_bf16, lib, native


def silu_mul(x: Tensor) -> Tensor:
    check_even("silu_mul", x)
    return _gate(x, 0)


def gelu_tanh_mul(x: Tensor) -> Tensor:
    check_even("gelu_tanh_mul", x)
    return _gate(x, 1)


def _gate(x: Tensor, gelu: int) -> Tensor:
    source = native(x)
    rows, width = source.shape[0], source.shape[1] // 2
    out = source.new_empty(rows, width)
    lib().esc_gate(source.data_ptr(), out.data_ptr(), rows, width, gelu, is_bf16(source))
    return out.to(x.dtype)
