"""Philox4x32-10 in int64 arithmetic, bit for bit that of `kernels/reference` and of the CPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.launch import (
    Argument,
    Block,
    Constant,
    Pointer,
    Schedule,
    aligned,
    device_function,
    i64,
    kernel,
    launch,
)

BLOCK = 256
WORD = tl.constexpr(0xFFFFFFFF)
MULTIPLIERS = tl.constexpr((0xD2511F53, 0xCD9E8D57))
KEY_STEPS = tl.constexpr((0x9E3779B9, 0xBB67AE85))
ROUNDS = tl.constexpr(10)


@device_function
def _high_and_low(x: Block, factor: tl.constexpr) -> Block:
    """Of the product of two 32-bit numbers. It wraps in int64, which loses no bit of either half."""
    product = x * factor
    return (product >> 32) & WORD, product & WORD


@kernel
def draw_uniforms(seeds: Pointer, positions: Pointer, out: Pointer, rows: i64, BLOCK: tl.constexpr) -> None:
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    seed = tl.load(seeds + row, mask=inside, other=0)
    position = tl.load(positions + row, mask=inside, other=0)
    key0, key1 = seed & WORD, (seed >> 32) & WORD
    c0, c1 = position & WORD, (position >> 32) & WORD
    c2, c3 = tl.zeros_like(seed), tl.zeros_like(seed)
    for _ in tl.static_range(ROUNDS):
        high0, low0 = _high_and_low(c0, MULTIPLIERS[0])
        high1, low1 = _high_and_low(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0
        key0, key1 = (key0 + KEY_STEPS[0]) & WORD, (key1 + KEY_STEPS[1]) & WORD
    # 53 bits: exact in float64, and below 1.
    bits = (c0 >> 5) * 67108864 + (c1 >> 6)
    tl.store(out + row, bits.to(tl.float64) * (1.0 / 9007199254740992.0), mask=inside)


def philox_constants() -> tuple[dict[str, Constant], Schedule]:
    return {"BLOCK": BLOCK}, Schedule(num_warps=4, num_stages=1)


def philox_uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    rows = seeds.shape[0]
    out = torch.empty(rows, dtype=torch.float64, device=seeds.device)
    arguments: dict[str, Argument] = {
        "seeds": aligned(seeds),
        "positions": aligned(positions),
        "out": out,
        "rows": rows,
    }
    constants, schedule = philox_constants()
    launch(draw_uniforms, (triton.cdiv(rows, BLOCK),), arguments, constants, schedule)
    return out
