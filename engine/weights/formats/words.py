"""Codes in 32-bit words: a little-endian stream of bits, low bits first. 3-bit codes cross the borders of words."""

from __future__ import annotations

import torch
from torch import Tensor

BITS = (2, 3, 4, 8)
"""The widths that are read."""
ONES = {2: (0x55555555,), 4: (0x11111111,), 8: (0x01010101,), 3: (0x49249249, 0x92492492, 0x24924924)}
"""bits -> the words in which every code is 1; of 3 bits, three words that hold 32 codes."""


def unpack(words: Tensor, bits: int, count: int) -> Tensor:
    """uint8 `[rows, count]` from int32 `[rows, ceil(count * bits / 32)]`, or a little more."""
    stream = words.contiguous().view(torch.uint8)
    if bits == 8:
        return stream[:, :count].contiguous()
    if bits == 3:
        # 8 codes lie in 3 bytes.
        parts = stream[:, : stream.shape[1] // 3 * 3].reshape(words.shape[0], -1, 3).int()
        joined = parts[..., 0] | parts[..., 1] << 8 | parts[..., 2] << 16
        codes: Tensor = joined.unsqueeze(-1) >> torch.arange(0, 24, 3, dtype=torch.int32) & 7
        return codes.flatten(1)[:, :count].to(torch.uint8)
    fields: Tensor = stream.unsqueeze(-1) >> torch.arange(0, 8, bits, dtype=torch.uint8) & (2**bits - 1)
    return fields.flatten(1)[:, :count].contiguous()


def pack(codes: Tensor, bits: int) -> Tensor:
    """int32 `[rows, ceil(count * bits / 32)]` of uint8 `[rows, count]`: the inverse of `unpack`."""
    rows, count = codes.shape
    per_word = 32 if bits == 3 else 32 // bits
    padded = torch.nn.functional.pad(codes, (0, -count % per_word))
    if bits == 3:
        eight = padded.view(rows, -1, 8).int() << torch.arange(0, 24, 3, dtype=torch.int32)
        joined = eight.sum(dim=-1, dtype=torch.int32)
        stream = torch.stack([joined & 255, joined >> 8 & 255, joined >> 16], dim=-1).to(torch.uint8).flatten(1)
    else:
        fields = padded.view(rows, -1, 8 // bits) << torch.arange(0, 8, bits, dtype=torch.uint8)
        stream = fields.sum(dim=-1, dtype=torch.uint8)
    words = stream.contiguous().view(torch.int32)
    return words[:, : -(-count * bits // 32)].contiguous()


def plus_one(words: Tensor, bits: int) -> Tensor:
    """Every code plus 1 by one addition a word: a carry goes into the next code, as the borrow of the writer did."""
    ones = torch.tensor(ONES[bits], dtype=torch.int64).repeat(-(-words.shape[1] // len(ONES[bits])))
    total = (words.long() + ones[: words.shape[1]]) & 0xFFFF_FFFF
    return torch.where(total >= 2**31, total - 2**32, total).to(torch.int32)
