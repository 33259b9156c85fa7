"""Makes the parts of one product (q, k and v; gate and up) stackable. A pure decision over weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

import torch
from torch import Tensor

from kernels.contracts import FloatWeight, IntWeight, Weight
from kernels.reference.dequantize import dequantize


def stackable(weights: Sequence[Weight], dtype: torch.dtype) -> list[Weight]:
    """The same weights in one form: integers of the widest code and the smallest group.

    Parts that share no form (a plain one beside codes, other orders of columns, other tiles) are widened to `dtype`.
    """
    if len(weights) == 1 or not any(isinstance(weight, (IntWeight, FloatWeight)) for weight in weights):
        return list(weights)
    integers = [weight for weight in weights if isinstance(weight, IntWeight)]
    if len(integers) == len(weights) and _alike(integers):
        bits, group = max(w.bits for w in integers), gcd(*(w.group for w in integers))
        return [_as(weight, bits, group) for weight in integers]
    floats = [weight for weight in weights if isinstance(weight, FloatWeight)]
    if len(floats) == len(weights) and len({(w.block, w.activations, w.input_scale) for w in floats}) == 1:
        block = floats[0].block
        # A tile of scales that ends within a part cannot be continued by the next one.
        if block is None or all(weight.out_features % block[0] == 0 for weight in floats[:-1]):
            return list(floats)
    return [weight if isinstance(weight, Tensor) else dequantize(weight).to(dtype) for weight in weights]


def _alike(weights: Sequence[IntWeight]) -> bool:
    first = weights[0]
    if len({(w.activations, w.input_scale, w.input_zero) for w in weights}) != 1:
        return False
    if first.columns is None:
        return all(weight.columns is None for weight in weights)
    if len({weight.group for weight in weights}) != 1:
        return False
    return all(w.columns is not None and torch.equal(w.columns, first.columns) for w in weights)


def _as(weight: IntWeight, bits: int, group: int) -> IntWeight:
    """The same numbers with wider codes and smaller groups."""
    if (weight.bits, weight.group) == (bits, group):
        return weight
    # A symmetric zero point is the middle of the old codes, which is no longer the middle of the wider ones.
    middle = torch.full_like(weight.scale, 2.0 ** (weight.bits - 1))
    zero = weight.zero if weight.zero is not None else (middle if bits != weight.bits else None)
    groups = -(-weight.in_features // group)

    def smaller(values: Tensor) -> Tensor:
        return values.repeat_interleave(weight.group // group, dim=1)[:, :groups].contiguous()

    return replace(
        weight, scale=smaller(weight.scale), zero=None if zero is None else smaller(zero), bits=bits, group=group
    )
