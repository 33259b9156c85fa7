"""LayerNorm (Ba et al., arXiv 1607.06450)."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.contracts import check_rows


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    check_rows("layer_norm", x, weight.shape[0])
    wide = x.float()
    centered = wide - wide.mean(dim=-1, keepdim=True)
    normed = centered * torch.rsqrt(centered.square().mean(dim=-1, keepdim=True) + eps) * weight.float()
    return (normed if bias is None else normed + bias.float()).to(x.dtype)
