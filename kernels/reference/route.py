"""Choice of the experts that a row goes to, and of their shares: softmax or sigmoid, groups, a choosing bias."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.contracts import KernelError

TINY = 1e-20
"""Added to a sum of shares, which sigmoids may leave at zero."""


def check_route(logits: Tensor, topk: int, scoring: str, groups: int, topk_groups: int) -> None:
    """Raises `KernelError` for what no router means."""
    experts = logits.shape[-1]
    if scoring not in ("softmax", "sigmoid"):
        raise KernelError(f"route: scoring {scoring!r} is unknown; choose softmax or sigmoid")
    if groups < 1 or experts % groups or not 1 <= topk_groups <= groups:
        raise KernelError(f"route: {topk_groups} of {groups} groups do not fit {experts} experts")
    if not 1 <= topk <= experts // groups * topk_groups:
        raise KernelError(f"route: {topk} experts a row, out of {experts // groups * topk_groups}")


def route(
    logits: Tensor,
    topk: int,
    scoring: str = "softmax",
    bias: Tensor | None = None,
    groups: int = 1,
    topk_groups: int = 1,
    normalize: bool = False,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    check_route(logits, topk, scoring, groups, topk_groups)
    wide = logits.float()
    scores = wide.softmax(dim=-1) if scoring == "softmax" else wide.sigmoid()
    # Logits order as scores do, but rounding makes no two of them equal.
    merit = wide if bias is None else scores + bias.float()
    if groups > 1:
        parts = merit.view(merit.shape[0], groups, merit.shape[1] // groups)
        best = parts.sort(dim=-1, descending=True).values
        merit_of_group = best[..., 0] if bias is None else best[..., :2].sum(dim=-1)
        kept = torch.zeros_like(merit_of_group, dtype=torch.bool).scatter_(1, _best(merit_of_group, topk_groups), True)
        # Not zero: a biased score may lie below it.
        merit = parts.masked_fill(~kept.unsqueeze(-1), float("-inf")).flatten(1)
    ids = _best(merit, topk)
    shares = scores.gather(1, ids)
    if normalize:
        shares = shares / (shares.sum(dim=-1, keepdim=True) + TINY)
    return ids.to(torch.int32), shares * scale


def _best(values: Tensor, count: int) -> Tensor:
    return values.sort(dim=-1, descending=True, stable=True).indices[:, :count]
