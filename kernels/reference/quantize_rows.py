"""Rows rounded to 8-bit codes with a scale per row or per group: the activations of W8A8 products."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.contracts import E4M3_MAX, KernelError

INT8_MAX = 127.0
SMALLEST_SCALE = 1e-12
"""A row of zeros has this scale, so that its codes are zeros and no division by zero happens."""


def quantize_rows(x: Tensor, to: str, group: int | None = None, scale: float | None = None) -> tuple[Tensor, Tensor]:
    if to not in ("int8", "fp8"):
        raise KernelError(f"quantize_rows: {to!r} is unknown; choose int8 or fp8")
    rows, inputs = x.shape
    width = inputs if group is None else group
    if width < 1 or inputs % width:
        raise KernelError(f"quantize_rows: groups of {width} do not divide {inputs} inputs")
    largest = INT8_MAX if to == "int8" else E4M3_MAX
    groups = x.float().view(rows, inputs // width, width)
    if scale is not None:
        scales = torch.full((rows, inputs // width), scale, dtype=torch.float32, device=x.device)
    else:
        scales = (groups.abs().amax(dim=-1) / largest).clamp_min(SMALLEST_SCALE)
    scaled = (groups * scales.reciprocal().unsqueeze(-1)).clamp(-largest, largest).view(rows, inputs)
    codes = scaled.round().to(torch.int8) if to == "int8" else scaled.to(torch.float8_e4m3fn)
    return codes, scales
