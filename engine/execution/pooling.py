"""Embeddings from a decoder: hidden states after the last norm, pooled over the prompt's chunks, of unit length.

Owns the running sum of each slot. Mean pooling needs every position, so such requests never skip cached tokens.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor


class Pooler:
    """`mean` over all tokens, or `last` for models trained so (Qwen3-Embedding, E5-Mistral)."""

    def __init__(self, kind: Literal["mean", "last"] = "mean") -> None:
        self._kind = kind
        self._sums: dict[int, Tensor] = {}

    def add(self, slot: int, normed: Tensor) -> None:
        """The next chunk of the prompt in `slot`: [rows, hidden]."""
        part = normed[-1].float() if self._kind == "last" else normed.float().sum(dim=0)
        known = self._sums.get(slot)
        self._sums[slot] = part if known is None or self._kind == "last" else known + part

    def finish(self, slot: int) -> list[float]:
        """The sum's direction is the mean's direction, so dividing by the count would change nothing."""
        vector: list[float] = torch.nn.functional.normalize(self._sums.pop(slot), dim=0).tolist()
        return vector

    def forget(self, slot: int) -> None:
        self._sums.pop(slot, None)
