"""Rows rounded to 8-bit codes with a scale per row or group of inputs: one program a group.

Divisions are exact ones, so that scales and codes are those of `kernels/reference` bit for bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.contracts import KernelError
from kernels.reference.quantize_rows import SMALLEST_SCALE
from kernels.reference.quantize_rows import quantize_rows as by_reference
from kernels.triton.launch import Constant, Pointer, Schedule, aligned, f32, kernel, launch
from kernels.triton.target import FP8_FROM, capability

SMALLEST = tl.constexpr(SMALLEST_SCALE)
ROUNDER = tl.constexpr(12582912.0)
"""1.5 * 2^23: adding and taking it away leaves the nearest integer, even on a tie."""


@kernel
def round_rows(
    x: Pointer,
    codes: Pointer,
    scales: Pointer,
    given: f32,
    zero: f32,
    STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
    FLOAT: tl.constexpr,
    STATIC: tl.constexpr,
) -> None:
    """`STATIC`: the given scale for all. `zero` is added to integer codes."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    place = tl.arange(0, BLOCK)
    column = group * GROUP + place
    inside = (place < GROUP) & (column < WIDTH)
    value = tl.load(x + row * STRIDE + column, mask=inside, other=0.0).to(tl.float32)
    LARGEST: tl.constexpr = 448.0 if FLOAT else 127.0
    # Codes have no infinity and no NaN: the scale says it instead.
    finite = tl.abs(value) < float("inf")
    broken = tl.max((~finite).to(tl.int32), axis=0) > 0
    value = tl.where(finite, value, 0.0)
    if STATIC:
        scale = given
    else:
        scale = tl.maximum(tl.div_rn(tl.max(tl.abs(value), axis=0), LARGEST), SMALLEST)
    tl.store(scales + row * GROUPS + group, tl.where(broken, float("nan"), scale))
    value = value * tl.div_rn(1.0, scale)
    to = codes + row * WIDTH + column
    if FLOAT:
        tl.store(to, tl.clamp(value, -LARGEST, LARGEST).to(tl.float8e4nv), mask=inside)
    else:
        value = (tl.clamp(value, -1e6, 1e6) + zero + ROUNDER) - ROUNDER
        # A zero point makes room for one more code at the lower end.
        tl.store(to, tl.clamp(value, tl.where(zero == 0.0, -127.0, -128.0), 127.0).to(tl.int8), mask=inside)


def round_constants(
    width: int, stride: int, group: int, floats: bool, static: bool
) -> tuple[dict[str, Constant], Schedule]:
    block = triton.next_power_of_2(group)
    constants: dict[str, Constant] = {
        "STRIDE": stride,
        "WIDTH": width,
        "GROUP": group,
        "GROUPS": triton.cdiv(width, group),
        "BLOCK": block,
        "FLOAT": floats,
        "STATIC": static,
    }
    return constants, Schedule(num_warps=max(1, min(16, block // 512)), num_stages=1)


def multiplies_fp8(device: torch.device) -> bool:
    """Whether the device knows e4m3; the interpreter does."""
    return capability(device) >= FP8_FROM


def round_activations(
    x: Tensor, to: str, group: int, scale: float | None = None, zero: float = 0.0
) -> tuple[Tensor, Tensor]:
    """As `quantize_rows`, but the last group may be narrower, and integer codes may have a zero point."""
    x = x if x.stride(-1) == 1 else aligned(x)
    rows, width = x.shape
    codes = torch.empty(rows, width, dtype=torch.float8_e4m3fn if to == "fp8" else torch.int8, device=x.device)
    scales = torch.empty(rows, triton.cdiv(width, group), dtype=torch.float32, device=x.device)
    constants, schedule = round_constants(width, x.stride(0), group, to == "fp8", scale is not None)
    launch(
        round_rows,
        (rows, scales.shape[1]),
        {
            "x": x, "codes": codes, "scales": scales,
            "given": 1.0 if scale is None else float(scale), "zero": zero,
        },
        constants,
        schedule,
    )  # fmt: skip
    return codes, scales


def quantize_rows(x: Tensor, to: str, group: int | None = None, scale: float | None = None) -> tuple[Tensor, Tensor]:
    if to not in ("int8", "fp8"):
        raise KernelError(f"quantize_rows: {to!r} is unknown; choose int8 or fp8")
    width = x.shape[1] if group is None else group
    if width < 1 or x.shape[1] % width:
        raise KernelError(f"quantize_rows: groups of {width} do not divide {x.shape[1]} inputs")
    if to == "fp8" and not multiplies_fp8(x.device):
        return by_reference(x, to, group, scale)
    return round_activations(x, to, width, scale)
