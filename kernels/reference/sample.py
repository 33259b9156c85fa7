"""One draw per row by inverting the CDF of the tokens that survive min_p, top_k and top_p. Here by a full sort."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.reference.greedy import greedy


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniforms: Tensor
) -> Tensor:
    ids, _ = greedy(logits)
    for row in range(logits.shape[0]):
        heat = float(temperature[row])
        if heat > 0.0:
            ids[row] = _draw(
                logits[row], heat, int(top_k[row]), float(top_p[row]), float(min_p[row]), float(uniforms[row])
            )
    return ids


def _draw(logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float, uniform: float) -> Tensor:
    scaled = logits.double().nan_to_num(nan=float("-inf"), posinf=float("inf"), neginf=float("-inf"))
    # Relative to the largest: exp() of the best token is 1 whatever the temperature.
    mass = torch.exp((scaled - scaled.max()) / temperature)
    order = torch.sort(mass, descending=True, stable=True).indices
    ranked = mass[order]
    kept = ranked >= min_p
    if top_k > 0:
        kept[top_k:] = False
    ranked = ranked * kept
    if top_p < 1.0:
        before = ranked.cumsum(0) - ranked
        kept &= before < top_p * ranked.sum()
        kept[0] = True
    survivors = torch.zeros_like(mass)
    survivors[order] = ranked * kept
    cdf = survivors.cumsum(0)
    chosen = int(torch.searchsorted(cdf, uniform * float(cdf[-1]), right=True))
    # Rounding may leave the target at the very end: the last survivor is the answer then.
    last = int(survivors.nonzero()[-1])
    return torch.tensor(min(chosen, last))
