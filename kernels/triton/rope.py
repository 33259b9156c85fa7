"""Rotary position embedding, halves convention, in place: one program a row and a few heads of q and k."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.contracts import KernelError
from kernels.triton.launch import Block, Constant, Pointer, Schedule, device_function, kernel, launch

HEADS = 8
"""Heads of a program: they share one row of the tables."""


@kernel
def rotate_heads(
    q: Pointer,
    k: Pointer,
    cos: Pointer,
    sin: Pointer,
    positions: Pointer,
    Q_STRIDE: tl.constexpr,
    K_STRIDE: tl.constexpr,
    Q_HEADS: tl.constexpr,
    K_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * GROUP + tl.arange(0, GROUP)
    column = tl.arange(0, BLOCK)
    turned = column < HALF
    position = tl.load(positions + row).to(tl.int64)
    c = tl.load(cos + position * HALF + column, mask=turned, other=0.0)[None, :]
    s = tl.load(sin + position * HALF + column, mask=turned, other=0.0)[None, :]
    _rotate(q + row * Q_STRIDE, head, head < Q_HEADS, column, turned, c, s, DIM, HALF)
    own = head - Q_HEADS
    _rotate(k + row * K_STRIDE, own, (own >= 0) & (own < K_HEADS), column, turned, c, s, DIM, HALF)


@device_function
def _rotate(
    base: Pointer,
    head: Block,
    wanted: Block,
    column: Block,
    turned: Block,
    c: Block,
    s: Block,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
) -> None:
    inside = wanted[:, None] & turned[None, :]
    at = base + head[:, None] * DIM + column[None, :]
    first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, (first * c - second * s).to(base.dtype.element_ty), mask=inside)
    tl.store(at + HALF, (second * c + first * s).to(base.dtype.element_ty), mask=inside)


def rope_constants(
    q_stride: int, k_stride: int, heads: int, kv_heads: int, dim: int, half: int
) -> tuple[dict[str, Constant], Schedule]:
    """`half` is the width of the tables: dimensions past `2 * half` stay."""
    constants: dict[str, Constant] = {
        "Q_STRIDE": q_stride,
        "K_STRIDE": k_stride,
        "Q_HEADS": heads,
        "K_HEADS": kv_heads,
        "DIM": dim,
        "HALF": half,
        "BLOCK": triton.next_power_of_2(half),
        "GROUP": min(HEADS, triton.next_power_of_2(heads + kv_heads)),
    }
    return constants, Schedule(num_warps=2, num_stages=1)


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
    half = cos.shape[1]
    if 2 * half > q.shape[-1]:
        raise KernelError(f"rope: tables rotate {2 * half} dimensions, heads have {q.shape[-1]}")
    for name, x in (("q", q), ("k", k)):
        if x.dim() != 3 or x.stride(2) != 1 or x.stride(1) != x.shape[2]:
            raise KernelError(f"rope: the heads of {name} do not lie side by side, its strides are {x.stride()}")
    constants, schedule = rope_constants(q.stride(0), k.stride(0), q.shape[1], k.shape[1], q.shape[2], half)
    programs = triton.cdiv(q.shape[1] + k.shape[1], int(constants["GROUP"] or 1))
    launch(
        rotate_heads,
        (q.shape[0], programs),
        {
            "q": q, "k": k, "cos": cos, "sin": sin, "positions": positions,
        },
        constants,
        schedule,
    )  # fmt: skip
