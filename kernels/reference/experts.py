"""Mixtures of experts as what they are: two products and a gate for the rows of each expert, and a weighted sum."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from kernels.contracts import KernelError, PackedExperts, PackedLinear, Weight
from kernels.reference.gated import gelu_tanh_mul, silu_mul
from kernels.reference.linear import linear, pack_linear

Gates = Mapping[str, Callable[[Tensor], Tensor]]
GATES: Gates = {"silu": silu_mul, "gelu_tanh": gelu_tanh_mul}


def pack_experts(
    experts: Iterable[tuple[Sequence[Weight], Weight]],
    dtype: torch.dtype,
    quantization: str | None = None,
    deterministic: bool = False,
    local: range | None = None,
) -> PackedExperts:
    return pack_with(pack_linear, experts, dtype, quantization, deterministic, local)


def experts(x: Tensor, ids: Tensor, shares: Tensor, packed: PackedExperts, activation: str = "silu") -> Tensor:
    return mix_with(linear, GATES, x, ids, shares, packed, activation)


def pack_with(
    pack: Callable[..., PackedLinear],
    experts: Iterable[tuple[Sequence[Weight], Weight]],
    dtype: torch.dtype,
    quantization: str | None,
    deterministic: bool,
    local: range | None,
) -> PackedExperts:
    """Each expert as two products of a back end, one after the other, so that one alone is in memory twice."""
    pairs = [
        (pack(gate_up, None, dtype, quantization, deterministic), pack(down, None, dtype, quantization, deterministic))
        for gate_up, down in experts
    ]
    first = check_experts([(up.out_features, up.in_features, down.in_features) for up, down in pairs], local)
    nbytes = sum(up.nbytes + down.nbytes for up, down in pairs)
    up, down = pairs[0]
    return PackedExperts(first, len(pairs), up.in_features, down.in_features, dtype, deterministic, pairs, nbytes)


def check_experts(shapes: Sequence[tuple[int, int, int]], local: range | None) -> int:
    """`(outputs of gate and up, hidden, inputs of down)` of each expert; the number of the first one."""
    if not shapes or (local is not None and (len(local) != len(shapes) or local.step != 1)):
        raise KernelError(f"pack_experts: {len(shapes)} experts given, {'some' if local is None else local} expected")
    outputs, _, inputs = shapes[0]
    if len(set(shapes)) > 1 or outputs != 2 * inputs:
        raise KernelError(
            f"pack_experts: experts have the shapes {sorted(set(shapes))}, expected one, with gate and up"
        )
    return 0 if local is None else local.start


def check_mix(x: Tensor, ids: Tensor, shares: Tensor, packed: PackedExperts, activation: str) -> None:
    if x.dim() != 2 or x.shape[1] != packed.hidden:
        raise KernelError(f"experts: x has shape {tuple(x.shape)}, expected [rows, {packed.hidden}]")
    if ids.shape != shares.shape or ids.dim() != 2 or ids.shape[0] != x.shape[0]:
        raise KernelError(f"experts: ids {tuple(ids.shape)} and shares {tuple(shares.shape)} of {x.shape[0]} rows")
    if activation not in GATES:
        raise KernelError(f"experts: activation {activation!r} is unknown; choose one of {sorted(GATES)}")


def mix_with(
    product: Callable[..., Tensor],
    gates: Gates,
    x: Tensor,
    ids: Tensor,
    shares: Tensor,
    packed: PackedExperts,
    activation: str,
) -> Tensor:
    """The rows of an expert run together; a row's sum is taken in the order of its ids, whatever is beside it."""
    check_mix(x, ids, shares, packed, activation)
    parts = torch.zeros(*ids.shape, packed.hidden, dtype=torch.float32, device=x.device)
    for number in torch.unique(ids).tolist():
        if not packed.first <= number < packed.first + packed.count:
            continue
        gate_up, down = packed.data[number - packed.first]
        rows, place = (ids == number).nonzero(as_tuple=True)
        inner = gates[activation](product(x[rows], gate_up))
        parts[rows, place] = product(inner, down, out_dtype=torch.float32) * shares[rows, place].unsqueeze(1)
    mixed = torch.zeros(x.shape[0], packed.hidden, dtype=torch.float32, device=x.device)
    for part in parts.unbind(1):
        mixed += part
    return mixed.to(x.dtype)
