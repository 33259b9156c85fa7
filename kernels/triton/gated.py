"""Gated activations: the first half of a row gates the second. One program a piece of a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.contracts import check_even
from kernels.triton.launch import Constant, Pointer, Schedule, kernel, launch

PIECE = 1024
"""Outputs of a program."""
SQRT_2_OVER_PI = tl.constexpr(0.7978845608028654)


@kernel
def gate_rows(
    x: Pointer, out: Pointer, WIDTH: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr, GELU: tl.constexpr
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    gate = tl.load(x + row * STRIDE + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * STRIDE + WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    if GELU:
        inner = SQRT_2_OVER_PI * (gate + 0.044715 * gate * gate * gate)
        # tanh(z) = 1 - 2 / (exp(2z) + 1), which overflows to the right value at both ends.
        gate = 0.5 * gate * (2.0 - 2.0 / (tl.exp(2.0 * inner) + 1.0))
    else:
        gate = gate / (1.0 + tl.exp(-gate))
    tl.store(out + row * WIDTH + column, (gate * up).to(out.dtype.element_ty), mask=inside)


def gate_constants(width: int, stride: int, gelu: bool) -> tuple[dict[str, Constant], Schedule]:
    """For rows of `2 * width` numbers that lie `stride` apart."""
    block = min(PIECE, triton.next_power_of_2(width))
    return {"WIDTH": width, "STRIDE": stride, "BLOCK": block, "GELU": gelu}, Schedule(num_warps=4, num_stages=1)


def silu_mul(x: Tensor) -> Tensor:
    check_even("silu_mul", x)
    return _gate(x, gelu=False)


def gelu_tanh_mul(x: Tensor) -> Tensor:
    check_even("gelu_tanh_mul", x)
    return _gate(x, gelu=True)


def _gate(x: Tensor, *, gelu: bool) -> Tensor:
    x = x if x.stride(-1) == 1 else x.contiguous()
    width = x.shape[1] // 2
    out = torch.empty(x.shape[0], width, dtype=x.dtype, device=x.device)
    constants, schedule = gate_constants(width, x.stride(0), gelu)
    pieces = triton.cdiv(width, int(constants["BLOCK"] or 1))
    launch(gate_rows, (x.shape[0], pieces), {"x": x, "out": out}, constants, schedule)
    return out
