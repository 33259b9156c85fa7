"""RMSNorm (Zhang & Sennrich, arXiv 1910.07467), alone, after a residual add, and per head."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.contracts import check_rows


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    check_rows("rms_norm", x, weight.shape[0])
    return _normalize(x, weight, eps, offset)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    check_rows("add_rms_norm", x, weight.shape[0])
    residual = x + residual
    return _normalize(residual, weight, eps, offset), residual


def head_rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    return _normalize(x, weight, eps, offset)


def _normalize(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    wide = x.float()
    inverse = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * inverse * (weight.float() + offset)).to(x.dtype)
