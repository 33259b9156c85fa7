"""Gated activations (Shazeer, arXiv 2002.05202): the first half gates the second."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from kernels.contracts import check_even


def silu_mul(x: Tensor) -> Tensor:
    check_even("silu_mul", x)
    gate, up = x.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(x.dtype)


def gelu_tanh_mul(x: Tensor) -> Tensor:
    check_even("gelu_tanh_mul", x)
    gate, up = x.float().chunk(2, dim=-1)
    return (F.gelu(gate, approximate="tanh") * up).to(x.dtype)
