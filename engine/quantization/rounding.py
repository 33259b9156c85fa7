"""Dense weights rounded to the nearest codes: per group, per output channel or per tile. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.contracts import E4M3_MAX, FloatWeight, IntWeight

SMALLEST_SCALE = 1e-5
"""Below it a float16 scale has no digits left; such a group is zeros."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Codes of `bits` bits in groups of `group` inputs; symmetric around the middle code, or with a zero point."""

    bits: int = 4
    group: int = 128
    symmetric: bool = False

    @property
    def highest(self) -> int:
        return int(2**self.bits - 1)

    def fit(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """(scale, zero) of `values [out, n]`, float32 `[out]`; scales are float16 numbers, zero points codes."""
        low, high = values.amin(dim=1).clamp(max=0), values.amax(dim=1).clamp(min=0)
        if self.symmetric:
            reach = torch.maximum(-low, high)
            low, high = -reach, reach
        scale = ((high - low) / self.highest).clamp_min(SMALLEST_SCALE).half().float()
        if self.symmetric:
            return scale, torch.full_like(scale, (self.highest + 1) / 2)
        return scale, (-low / scale).round().clamp(0, self.highest)

    def codes(self, values: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        """float32 codes of `values [out, n]`; `scale` and `zero` of its shape, or `[out, 1]`."""
        return (values / scale + zero).round().clamp(0, self.highest)


def nearest_integers(weight: Tensor, grid: Grid) -> IntWeight:
    """`weight [out, in]`, whose inputs are whole groups."""
    outputs, inputs = weight.shape
    groups = weight.float().view(outputs, -1, grid.group)
    scale, zero = grid.fit(groups.flatten(0, 1))
    codes = grid.codes(groups.flatten(0, 1), scale.unsqueeze(1), zero.unsqueeze(1)).view(outputs, inputs)
    shape = (outputs, inputs // grid.group)
    points = None if grid.symmetric else zero.view(shape)
    return IntWeight(codes.to(torch.uint8), scale.view(shape), points, grid.bits, grid.group)


def nearest_bytes(weight: Tensor) -> IntWeight:
    """Symmetric 8-bit codes with a scale per output channel, for W8A8 products with a scale per row of activations."""
    wide = weight.float()
    scale = (wide.abs().amax(dim=1, keepdim=True) / 127).clamp_min(1e-12)
    codes = ((wide / scale).round().clamp(-127, 127) + 128).to(torch.uint8)
    return IntWeight(codes, scale, None, 8, weight.shape[1], activations="int8")


def nearest_floats(weight: Tensor, block: tuple[int, int] | None) -> FloatWeight:
    """float8 codes with a scale per output channel, or per tile whose largest magnitude becomes 448."""
    wide = weight.float()
    outputs, inputs = wide.shape
    if block is None:
        scale = (wide.abs().amax(dim=1, keepdim=True) / E4M3_MAX).clamp_min(1e-12)
        spread = scale
    else:
        tall, broad = block
        padded = F.pad(wide, (0, -inputs % broad, 0, -outputs % tall))
        tiles = padded.view(padded.shape[0] // tall, tall, padded.shape[1] // broad, broad)
        scale = (tiles.abs().amax(dim=(1, 3)) / E4M3_MAX).clamp_min(1e-12)
        spread = scale.repeat_interleave(tall, 0).repeat_interleave(broad, 1)[:outputs, :inputs]
    codes = (wide / spread).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return FloatWeight(codes, scale, block, activations="fp8")
