"""Philox4x32-10 (Salmon et al., SC 2011): a counter-based generator, so a draw depends on (seed, position) alone."""

from __future__ import annotations

import torch
from torch import Tensor

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
MASK = 0xFFFFFFFF


def philox_uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    key = [seeds & MASK, (seeds >> 32) & MASK]
    counter = [positions & MASK, (positions >> 32) & MASK, torch.zeros_like(seeds), torch.zeros_like(seeds)]
    for _ in range(ROUNDS):
        high0, low0 = _multiply(counter[0], MULTIPLIERS[0])
        high1, low1 = _multiply(counter[2], MULTIPLIERS[1])
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0]
        key = [(key[0] + KEY_STEPS[0]) & MASK, (key[1] + KEY_STEPS[1]) & MASK]
    # 53 bits: 27 of the first word and 26 of the second, so the result is exact in float64 and below 1.
    return ((counter[0] >> 5) * 67108864 + (counter[1] >> 6)).double() / 9007199254740992.0


def _multiply(x: Tensor, constant: int) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of a 32x32-bit product, in int64 without overflow (16-bit limbs)."""
    low, high = x & 0xFFFF, x >> 16
    first, second = low * constant, high * constant
    total = first + ((second & 0xFFFF) << 16)
    return (total >> 32) + (second >> 16), total & MASK
