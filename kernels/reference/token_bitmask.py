"""Forbid tokens by a packed bit mask (grammars): 32 tokens an int32 word, lowest bit first."""

from __future__ import annotations

import torch
from torch import Tensor


def apply_token_bitmask(logits: Tensor, bitmask: Tensor, rows: Tensor) -> None:
    vocab = logits.shape[1]
    bits = (bitmask.unsqueeze(-1) >> torch.arange(32, device=bitmask.device)) & 1
    allowed = bits.flatten(1)[:, :vocab].bool()
    if allowed.shape[1] < vocab:
        # A mask shorter than the (padded) vocabulary forbids the rest.
        allowed = torch.nn.functional.pad(allowed, (0, vocab - allowed.shape[1]), value=False)
    logits[rows] = logits[rows].masked_fill(~allowed, float("-inf"))
