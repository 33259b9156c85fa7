"""RMSNorm alone, after a residual add (in place on the residual), and per head. Formula: `kernels/reference`."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.contracts import KernelError, check_rows
from kernels.cpu.library import is_bf16, lib, native


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    check_rows("rms_norm", x, weight.shape[0])
    return _normalize(x, None, weight, eps, offset)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    check_rows("add_rms_norm", x, weight.shape[0])
    if residual.shape != x.shape or residual.dtype is not x.dtype:
        raise KernelError(f"add_rms_norm: residual {tuple(residual.shape)} {residual.dtype} beside {tuple(x.shape)}")
    total = native(residual)
    out = _normalize(x, total, weight, eps, offset)
    return out, total.to(x.dtype)


def head_rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    if x.shape[-1] != weight.shape[0]:
        raise KernelError(f"head_rms_norm: x has shape {tuple(x.shape)}, weight {tuple(weight.shape)}")
    return _normalize(x.reshape(-1, x.shape[-1]), None, weight, eps, offset).view(x.shape)


def _normalize(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, offset: float) -> Tensor:
    source, scale = native(x), native(weight)
    out = torch.empty_like(source)
    lib().esc_rms_norm(
        source.data_ptr(),
        None if residual is None else residual.data_ptr(),
        scale.data_ptr(),
        out.data_ptr(),
        source.shape[0],
        source.shape[1],
        eps,
        offset,
        is_bf16(source),
        is_bf16(scale),
    )
    return out.to(x.dtype)
