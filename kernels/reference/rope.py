"""Rotary position embedding (Su et al., arXiv 2104.09864), halves convention, in place."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.contracts import KernelError


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
    half = cos.shape[1]
    if 2 * half > q.shape[-1]:
        raise KernelError(f"rope: tables rotate {2 * half} dimensions, heads have {q.shape[-1]}")
    cos_rows, sin_rows = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
    for x in (q, k):
        first, second = x[..., :half].float(), x[..., half : 2 * half].float()
        rotated = torch.cat((first * cos_rows - second * sin_rows, second * cos_rows + first * sin_rows), dim=-1)
        x[..., : 2 * half] = rotated.to(x.dtype)
