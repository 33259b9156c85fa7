"""GGUF blocks and float weights as unsigned codes with a scale and a minimum per group: `weight = code*scale + min`.

One form for every 4- to 8-bit block format, so one kernel family runs them all. Codes are those of the file; K-block
scales are multiplied out and rounded to float16 when packed (relative error 2^-11).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.contracts import KernelError, QuantizedWeight
from kernels.reference.dequantize import scales_and_minima

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
    if weight.type not in READERS:
        raise KernelError(f"GGUF type {weight.type!r} has no codes to keep; known: {', '.join(sorted(READERS))}")
    size, group, bits, read = READERS[weight.type]
    rows = weight.out_features
    codes, scale, minimum = read(weight.data.reshape(-1, size))
    shape = (rows, weight.in_features // group)
    return GroupedWeight(
        codes.reshape(rows, weight.in_features).contiguous(),
        scale.reshape(shape).contiguous(),
        minimum.reshape(shape).contiguous(),
        group,
        bits,
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


Parts = tuple[Tensor, Tensor, Tensor]


def _half(blocks: Tensor, start: int) -> Tensor:
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    return torch.cat((packed & 15, packed >> 4), dim=-1)


def _fifth_bits(blocks: Tensor, start: int) -> Tensor:
    bits = (blocks[:, start : start + 4].unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8)) & 1
    return bits.flatten(1) << 4


def _q4_0(blocks: Tensor) -> Parts:
    scale = _half(blocks, 0)
    return _nibbles(blocks[:, 2:]), scale, -8 * scale


def _q4_1(blocks: Tensor) -> Parts:
    return _nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: Tensor) -> Parts:
    scale = _half(blocks, 0)
    return _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2), scale, -16 * scale


def _q5_1(blocks: Tensor) -> Parts:
    return _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4), _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: Tensor) -> Parts:
    scale = _half(blocks, 0)
    # Two's complement with the top bit flipped is the code plus 128.
    return blocks[:, 2:] ^ 128, scale, -128 * scale


def _k_scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    scales, minima = scales_and_minima(blocks[:, 4:16])
    return scales * _half(blocks, 0), -minima * _half(blocks, 2)


def _pairs_of_32(packed: Tensor) -> Tensor:
    chunks = packed.reshape(-1, 4, 1, 32)
    return torch.cat((chunks & 15, chunks >> 4), dim=2).view(-1, 8, 32)


def _q4_k(blocks: Tensor) -> Parts:
    return _pairs_of_32(blocks[:, 16:144]), *_k_scales(blocks)


def _q5_k(blocks: Tensor) -> Parts:
    shifts = torch.arange(8, dtype=torch.uint8).view(1, 8, 1)
    high = ((blocks[:, 16:48].unsqueeze(1) >> shifts) & 1) << 4
    return _pairs_of_32(blocks[:, 48:176]) | high, *_k_scales(blocks)


def _q6_k(blocks: Tensor) -> Parts:
    low, high = blocks[:, :128].reshape(-1, 2, 64), blocks[:, 128:192].reshape(-1, 2, 1, 32)
    fours = torch.stack((low[:, :, :32] & 15, low[:, :, 32:] & 15, low[:, :, :32] >> 4, low[:, :, 32:] >> 4), dim=2)
    twos = (high >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(1, 1, 4, 1)) & 3
    scale = blocks[:, 192:208].contiguous().view(torch.int8).float() * _half(blocks, 208)
    return fours | (twos << 4), scale, -32 * scale


READERS: dict[str, tuple[int, int, int, Callable[[Tensor], Parts]]] = {
    "Q4_0": (18, 32, 4, _q4_0),
    "Q4_1": (20, 32, 4, _q4_1),
    "Q5_0": (22, 32, 8, _q5_0),
    "Q5_1": (24, 32, 8, _q5_1),
    "Q8_0": (34, 32, 8, _q8_0),
    "Q4_K": (144, 32, 4, _q4_k),
    "Q5_K": (176, 32, 8, _q5_k),
    "Q6_K": (210, 16, 8, _q6_k),
}
"""type -> (bytes a block, group, bits that we store a code in, reader)."""
