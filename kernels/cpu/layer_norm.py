"""LayerNorm. Formula: `kernels/reference`."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.contracts import check_rows
from kernels.cpu.library import is_bf16, lib, native


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    check_rows("layer_norm", x, weight.shape[0])
    source = native(x)
    scale = weight.to(source.dtype).contiguous()
    shift = None if bias is None else bias.to(source.dtype).contiguous()
    out = torch.empty_like(source)
    lib().esc_layer_norm(
        source.data_ptr(),
        scale.data_ptr(),
        None if shift is None else shift.data_ptr(),
        out.data_ptr(),
        source.shape[0],
        source.shape[1],
        eps,
        is_bf16(source),
    )
    return out.to(x.dtype)
