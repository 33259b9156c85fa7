"""`IntWeight` codes (AWQ, GPTQ, compressed-tensors) in the panels of `csrc/linear.h`, as the checkpoint has them.

Groups keep their width up to 128 inputs, which are also the inputs that share one scale of activations; wider ones are
split, so that an outlier among the activations costs precision in its own group only. 2- and 3-bit codes take 4 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.contracts import IntWeight, KernelError
from kernels.cpu.library import LinearStruct, lib
from kernels.cpu.weight_memory import WeightMemory

KINDS = {"float32": 0, "bfloat16": 1, "int8": 2, "group4": 3, "group8": 4, "half": 5, "float8": 6}
"""`Kind` of `csrc/linear.h`."""
MEMORY = WeightMemory()
PANEL = 32
MOST = 128
STEP = 8
"""Inputs that an instruction eats at once, or two: groups are multiples of it."""


def panels(outputs: int) -> int:
    return -(-outputs // PANEL)


def native_group(weights: Sequence[IntWeight]) -> int:
    """The widest group that holds all of these stacked weights exactly; 0 where the kernels cannot run them."""
    inputs = weights[0].in_features
    group = gcd(inputs, *(min(weight.group, inputs) for weight in weights))
    if group > MOST:
        group = gcd(group, MOST)
    return 0 if group % STEP else group


def pack_integers(weights: Sequence[IntWeight], struct: LinearStruct) -> tuple[Tensor, ...]:
    """Fill `struct` and return the tensors that it points to. Raises KernelError for parts of other column orders."""
    first = weights[0]
    tensors = _pack_bytes(weights, struct) if _plain_bytes(weights) else _pack_groups(weights, struct)
    if any(not _same_order(first, weight) for weight in weights[1:]):
        raise KernelError("weights with other orders of their columns cannot be stacked")
    if first.columns is None:
        return tensors
    columns = first.columns.to(torch.int32).contiguous()
    struct.columns = columns.data_ptr()
    return (*tensors, columns)


def _same_order(first: IntWeight, other: IntWeight) -> bool:
    if first.columns is None or other.columns is None:
        return first.columns is other.columns
    return torch.equal(first.columns, other.columns)


def _plain_bytes(weights: Sequence[IntWeight]) -> bool:
    """Whether one scale an output and a zero point of 128 say all there is."""
    return all(w.bits == 8 and w.zero is None and w.group >= w.in_features for w in weights)


def _pack_bytes(weights: Sequence[IntWeight], struct: LinearStruct) -> tuple[Tensor, ...]:
    rows, width = panels(struct.n) * PANEL, -(-struct.k // STEP) * STEP
    packed, scale = MEMORY.zeros(rows * width, torch.uint8), torch.zeros(rows)
    unused = torch.zeros(rows, dtype=torch.float16)
    row = 0
    for weight in weights:
        codes = F.pad(weight.codes, (0, width - struct.k)).contiguous()
        scale[row : row + weight.out_features] = weight.scale[:, 0]
        _call_pack(codes, weight.scale, weight.scale, width, row, 8, (packed, unused, unused))
        row += weight.out_features
    struct.kind, struct.weight, struct.scale = KINDS["int8"], packed.data_ptr(), scale.data_ptr()
    return packed, scale


def _pack_groups(weights: Sequence[IntWeight], struct: LinearStruct) -> tuple[Tensor, ...]:
    group, bits = native_group(weights), 4 if max(w.bits for w in weights) <= 4 else 8
    rows, groups = panels(struct.n) * PANEL, struct.k // group
    packed = MEMORY.zeros(rows * struct.k * bits // 8, torch.uint8)
    scale, minimum = MEMORY.zeros(rows * groups, torch.float16), MEMORY.zeros(rows * groups, torch.float16)
    row = 0
    for weight in weights:
        zero = torch.full_like(weight.scale, 2.0 ** (weight.bits - 1)) if weight.zero is None else weight.zero
        # Each group of the checkpoint holds whole groups of ours, up to a shorter last one.
        owner = torch.arange(groups) * group // weight.group
        steps, lows = weight.scale[:, owner].contiguous(), (-zero * weight.scale)[:, owner].contiguous()
        _call_pack(weight.codes.contiguous(), steps, lows, group, row, bits, (packed, scale, minimum))
        row += weight.out_features
    struct.kind, struct.group, struct.weight = KINDS[f"group{bits}"], group, packed.data_ptr()
    struct.group_scale, struct.group_min = scale.data_ptr(), minimum.data_ptr()
    return packed, scale, minimum


def _call_pack(
    codes: Tensor, scale: Tensor, minimum: Tensor, group: int, row: int, bits: int, into: tuple[Tensor, Tensor, Tensor]
) -> None:
    lib().esc_pack_groups(
        codes.data_ptr(),
        scale.data_ptr(),
        minimum.data_ptr(),
        codes.shape[0],
        codes.shape[1],
        group,
        row,
        bits,
        *(tensor.data_ptr() for tensor in into),
    )
