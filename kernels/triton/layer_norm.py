"""LayerNorm (Ba et al., arXiv 1607.06450), one program a row."""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from kernels.contracts import check_rows
from kernels.triton.launch import Pointer, f32, kernel, launch
from kernels.triton.rms_norm import row_constants


@kernel
def center_rows(
    x: Pointer,
    weight: Pointer,
    bias: Pointer,
    out: Pointer,
    eps: f32,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    wide = tl.load(x + row * STRIDE + column, mask=inside, other=0.0).to(tl.float32)
    centered = tl.where(inside, wide - tl.sum(wide, axis=0) / WIDTH, 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(centered * centered, axis=0) / WIDTH + eps)
    normed = centered * inverse * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        normed += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + column, normed.to(out.dtype.element_ty), mask=inside)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    check_rows("layer_norm", x, weight.shape[0])
    x = x if x.stride(-1) == 1 else x.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    constants, schedule = row_constants(x.shape[1], x.stride(0))
    launch(
        center_rows,
        (x.shape[0],),
        {"x": x, "weight": weight, "bias": bias, "out": out, "eps": eps},
        constants,
        schedule,
    )
    return out
