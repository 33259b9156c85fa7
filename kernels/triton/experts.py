"""Mixtures of experts: two products over blocks of rows of one expert, a gate between them, and a sum in fixed order.

Weights of any form that `product.multiply` knows; those of all experts are packed as one. Parts that share no form, and
codes whose columns each expert orders otherwise, are widened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.contracts import IntWeight, PackedExperts, Weight, as_weights, check_quantization, width
from kernels.reference.dequantize import dequantize
from kernels.reference.experts import check_experts, check_mix
from kernels.triton.gated import gelu_tanh_mul, silu_mul
from kernels.triton.grouping import group_slots
from kernels.triton.launch import Argument, Constant, Pointer, Schedule, aligned, i64, kernel, launch
from kernels.triton.linear import activations, form_constants, product_arguments
from kernels.triton.packing import ProductWeight, pack
from kernels.triton.product import multiply
from kernels.triton.target import capability
from kernels.triton.tiles import choose, constants_of, step_of

PIECE = 1024


@dataclass(slots=True)
class ExpertProducts:
    """The weights of all experts of a layer."""

    up: ProductWeight
    down: ProductWeight


@kernel
def sum_choices(
    parts: Pointer,
    ids: Pointer,
    out: Pointer,
    first: i64,
    count: i64,
    WIDTH: tl.constexpr,
    TOPK: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Parts of experts that lie elsewhere were never written, and are not read."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for place in tl.static_range(TOPK):
        slot = row * TOPK + place
        owner = tl.load(ids + slot) - first
        here = (owner >= 0) & (owner < count)
        total += tl.load(parts + slot * WIDTH + column, mask=(column < WIDTH) & here, other=0.0)
    tl.store(out + row * WIDTH + column, total.to(out.dtype.element_ty), mask=column < WIDTH)


def pack_experts(
    experts: Iterable[tuple[Sequence[Weight], Weight]],
    dtype: torch.dtype,
    quantization: str | None = None,
    deterministic: bool = False,
    local: range | None = None,
) -> PackedExperts:
    ups: list[Weight] = []
    downs: list[Weight] = []
    shapes: list[tuple[int, int, int]] = []
    for gate_up, down in experts:
        parts = as_weights(gate_up)
        check_quantization(parts, quantization)
        ups.extend(parts)
        downs.append(down)
        shapes.append((sum(_outputs(part) for part in parts), width(parts[0]), width(down)))
    first = check_experts(shapes, local)
    count = len(shapes)
    data = ExpertProducts(_pack_all(ups, count, dtype, quantization), _pack_all(downs, count, dtype, quantization))
    nbytes = sum(tensor.nbytes for weight in (data.up, data.down) for tensor in weight.tensors)
    return PackedExperts(first, count, shapes[0][1], shapes[0][2], dtype, deterministic, data, nbytes)


def _outputs(weight: Weight) -> int:
    return int(weight.shape[0]) if isinstance(weight, Tensor) else weight.out_features


def _pack_all(parts: list[Weight], count: int, dtype: torch.dtype, quantization: str | None) -> ProductWeight:
    """One after the other, each tensor beginning with the number of the expert."""
    ordered = any(isinstance(part, IntWeight) and part.columns is not None for part in parts)
    if ordered or len({type(part) for part in parts}) > 1:
        parts = [(part if isinstance(part, Tensor) else dequantize(part)).to(dtype) for part in parts]
    weight = pack(parts, dtype, quantization)
    weight.outputs //= count
    if weight.form.startswith("codes"):
        weight.weight = _split(weight.weight, count)
    weight.scale = None if weight.scale is None else _split(weight.scale, count)
    weight.offset = None if weight.offset is None else _split(weight.offset, count)
    return weight


def _split(stacked: Tensor, count: int) -> Tensor:
    """`[rows, experts * outputs]` -> `[experts, rows, outputs]`."""
    return stacked.view(stacked.shape[0], count, -1).transpose(0, 1).contiguous()


def experts(x: Tensor, ids: Tensor, shares: Tensor, packed: PackedExperts, activation: str = "silu") -> Tensor:
    check_mix(x, ids, shares, packed, activation)
    rows, topk = ids.shape
    out = torch.empty(rows, packed.hidden, dtype=x.dtype, device=x.device)
    if not rows:
        return out
    up, down = packed.data.up, packed.data.down
    ids, shares = aligned(ids), aligned(shares)
    average = None if packed.deterministic else -(-rows * topk // packed.count)
    first, first_plan = experts_constants(up, average, topk)
    block_m = int(first["BLOCK_M"] or 1)
    # The same blocks of rows serve both products.
    second, second_plan = experts_constants(down, average, 1, block_m)
    order = group_slots(ids, packed.first, packed.count, block_m)
    inner = torch.empty(rows * topk, up.outputs, dtype=packed.dtype, device=x.device)
    _multiply(x, up, packed.dtype, order, None, inner, first, first_plan)
    gated = silu_mul(inner) if activation == "silu" else gelu_tanh_mul(inner)
    parts = torch.empty(rows * topk, packed.hidden, dtype=torch.float32, device=x.device)
    _multiply(gated, down, packed.dtype, order, shares, parts, second, second_plan)
    summing, schedule = sum_constants(packed.hidden, topk)
    arguments: dict[str, Argument] = {
        "parts": parts, "ids": ids, "out": out, "first": packed.first, "count": packed.count,
    }  # fmt: skip
    launch(sum_choices, (rows, triton.cdiv(packed.hidden, PIECE)), arguments, summing, schedule)
    return out


def _multiply(
    x: Tensor,
    weight: ProductWeight,
    dtype: torch.dtype,
    order: tuple[Tensor, Tensor],
    shares: Tensor | None,
    out: Tensor,
    constants: dict[str, Constant],
    schedule: Schedule,
) -> None:
    x, x_scale = activations(x, weight, dtype)
    arguments = product_arguments(x, x_scale, weight, weight.correction, out, out.shape[0])
    arguments |= {"order": order[0], "owners": order[1], "shares": shares}
    grid = (order[1].shape[0], triton.cdiv(weight.outputs, int(constants["BLOCK_N"] or 1)), 1)
    launch(multiply, grid, arguments, constants, schedule)


def experts_constants(
    weight: ProductWeight, average: int | None, shared_by: int, block_m: int | None = None
) -> tuple[dict[str, Constant], Schedule]:
    """Of `multiply`. `average`: rows of an expert, None for any number; `block_m`: where another product chose it."""
    tile = choose(weight.form, step_of(average), weight.outputs, capability(weight.weight.device), block_m)
    constants, schedule = constants_of(tile, splits=1)
    return form_constants(weight) | constants | {"SHARED_BY": shared_by}, schedule


def sum_constants(hidden: int, topk: int) -> tuple[dict[str, Constant], Schedule]:
    return {"WIDTH": hidden, "TOPK": topk, "BLOCK": PIECE}, Schedule(num_warps=4, num_stages=1)
