"""GGUF blocks and float weights as unsigned codes with a scale and a minimum per group: `weight = code*scale + min`.

One form for every 4- to 8-bit block format, so one kernel family runs them all. Codes are those of the file; K-block
scales are multiplied out and rounded to float16 when packed (relative error 2^-11).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.contracts import KernelError, QuantizedWeight
from kernels.gguf_formats import BLOCKS
from kernels.reference.dequantize import TORCH

INT4_GROUP = 32


@dataclass(slots=True)
class GroupedWeight:
    """`codes` uint8 `[out, in]`; `scale`, `minimum` float32 `[out, in/group]`."""

    codes: Tensor
    scale: Tensor
    minimum: Tensor
    group: int
    bits: int

    def split_groups(self, group: int) -> GroupedWeight:
        """The same weight with smaller groups (each scale repeated)."""
        repeat = self.group // group
        if repeat == 1:
            return self
        scale, minimum = (x.repeat_interleave(repeat, dim=1) for x in (self.scale, self.minimum))
        return GroupedWeight(self.codes, scale, minimum, group, self.bits)


def regroup(weight: QuantizedWeight) -> GroupedWeight:
    """Codes and scales of a block format. Raises `KernelError` for types without groups (F16, BF16, F32)."""
    form = BLOCKS.get(weight.type)
    if form is None or form.read is None:
        raise KernelError(f"GGUF type {weight.type!r} has no codes to keep; known: {', '.join(sorted(BLOCKS))}")
    codes, scale, minimum = form.read(weight.data.reshape(-1, form.nbytes), TORCH)
    zero = form.zero
    if codes.dtype is torch.int8:
        # Two's complement with the top bit flipped is the code plus 128.
        codes, zero = codes.view(torch.uint8) ^ 128, zero + 128
    shape = (weight.out_features, weight.in_features // form.group)
    scale = scale.reshape(shape).contiguous()
    return GroupedWeight(
        codes.reshape(weight.out_features, weight.in_features).contiguous(),
        scale,
        -zero * scale if minimum is None else minimum.reshape(shape).contiguous(),
        form.group,
        form.bits,
    )


def quantize_int4(weight: Tensor) -> GroupedWeight:
    """Nearest 4-bit codes between the smallest and largest weight of each group of 32 inputs."""
    rows, width = weight.shape
    if width % INT4_GROUP:
        raise KernelError(f"int4 needs input widths in multiples of {INT4_GROUP}, found {width}")
    groups = weight.float().view(rows, -1, INT4_GROUP)
    low = groups.amin(dim=-1)
    scale = ((groups.amax(dim=-1) - low) / 15).clamp_min(1e-12)
    codes = ((groups - low.unsqueeze(-1)) / scale.unsqueeze(-1)).round().clamp(0, 15).to(torch.uint8)
    return GroupedWeight(codes.view(rows, width), scale, low, INT4_GROUP, 4)
