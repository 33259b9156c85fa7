"""AWQ (Lin et al., arXiv 2306.00978): channels with large inputs are scaled up before rounding, and their inputs down.

The scale of an input channel is its mean magnitude to a power; the power that leaves the smallest error on the
calibration inputs is found by trying. Pure functions over tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.quantization.rounding import Grid, nearest_integers
from kernels.reference.dequantize import dequantize

POWERS = tuple(step / 20 for step in range(20))


def best_scales(weights: Sequence[Tensor], hessian: Tensor, magnitudes: Tensor, grid: Grid) -> Tensor:
    """float32 `[in]` for products of one input: `W * s` is to be rounded, and `x / s` to be given to it.

    `magnitudes` `[in]` are the means of `|x|`. The error of a rounded weight is `tr(D H D^T)`, `D` its difference.
    """
    best, chosen = float("inf"), torch.ones_like(magnitudes)
    for power in POWERS:
        scales = magnitudes.clamp_min(1e-4).pow(power)
        scales = scales / (scales.max() * scales.min()).sqrt()
        error = sum(_error(weight.float(), hessian, scales, grid) for weight in weights)
        if error < best:
            best, chosen = error, scales
    return chosen


def _error(weight: Tensor, hessian: Tensor, scales: Tensor, grid: Grid) -> float:
    difference = dequantize(nearest_integers(weight * scales, grid)) / scales - weight
    return float((difference @ hessian * difference).sum())
