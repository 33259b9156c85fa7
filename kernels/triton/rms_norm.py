"""RMSNorm alone, after a residual add, and per head: one program a row. Formula: `kernels/reference`.

The sum with the residual is rounded to its dtype before the norm; the norm itself is rounded once, at the end.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.contracts import KernelError, check_rows
from kernels.triton.launch import Constant, Pointer, Schedule, aligned, f32, kernel, launch


@kernel
def normalize_rows(
    x: Pointer,
    residual: Pointer,
    weight: Pointer,
    out: Pointer,
    eps: f32,
    offset: f32,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    value = tl.load(x + row * STRIDE + column, mask=inside, other=0.0)
    if residual is not None:
        at = residual + row * WIDTH + column
        summed = value.to(tl.float32) + tl.load(at, mask=inside, other=0.0).to(tl.float32)
        value = summed.to(residual.dtype.element_ty)
        tl.store(at, value, mask=inside)
    wide = value.to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / WIDTH + eps)
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32) + offset
    tl.store(out + row * WIDTH + column, (wide * inverse * scale).to(out.dtype.element_ty), mask=inside)


def row_constants(width: int, stride: int) -> tuple[dict[str, Constant], Schedule]:
    """For a program that holds a whole row in registers."""
    block = triton.next_power_of_2(width)
    return {"WIDTH": width, "STRIDE": stride, "BLOCK": block}, Schedule(
        num_warps=max(1, min(16, block // 512)), num_stages=1
    )


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    check_rows("rms_norm", x, weight.shape[0])
    return _normalize(x, None, weight, eps, offset)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    check_rows("add_rms_norm", x, weight.shape[0])
    if residual.shape != x.shape or residual.dtype is not x.dtype:
        raise KernelError(f"add_rms_norm: residual {tuple(residual.shape)} {residual.dtype} beside {tuple(x.shape)}")
    total = residual.contiguous()
    return _normalize(x, total, weight, eps, offset), total


def head_rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    if x.shape[-1] != weight.shape[0]:
        raise KernelError(f"head_rms_norm: x has shape {tuple(x.shape)}, weight {tuple(weight.shape)}")
    return _normalize(x.reshape(-1, x.shape[-1]), None, weight, eps, offset).view(x.shape)


def _normalize(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, offset: float) -> Tensor:
    x = x if x.stride(-1) == 1 else x.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    constants, schedule = row_constants(x.shape[1], x.stride(0))
    launch(
        normalize_rows,
        (x.shape[0],),
        {
            "x": x, "residual": residual, "weight": aligned(weight), "out": out, "eps": eps, "offset": offset,
        },
        constants,
        schedule,
    )  # fmt: skip
    return out
