"""The most likely token of each row and its log-probability."""

from __future__ import annotations

import torch
from torch import Tensor


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    wide = logits.float().nan_to_num(nan=float("-inf"), posinf=float("inf"), neginf=float("-inf"))
    best = wide.amax(dim=-1, keepdim=True)
    ids = (wide == best).int().argmax(dim=-1)
    return ids, best.squeeze(-1) - torch.logsumexp(wide, dim=-1)
