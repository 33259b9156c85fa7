"""Choice of experts and of their shares: one program a row, which picks the best `topk` times."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.reference.route import TINY, check_route
from kernels.triton.launch import Block, Constant, Pointer, Schedule, aligned, device_function, f32, kernel, launch

NONE = tl.constexpr(float("-inf"))
LEAST = tl.constexpr(TINY)


@device_function
def _best(merit: Block, place: Block, free: Block, SIZE: tl.constexpr) -> Block:
    """The lowest place that is free and has the largest merit."""
    largest = tl.max(tl.where(free, merit, NONE), axis=0)
    return tl.min(tl.where(free & (merit == largest), place, SIZE - 1), axis=0)


@kernel
def choose_experts(
    logits: Pointer,
    bias: Pointer,
    ids: Pointer,
    shares: Pointer,
    scale: f32,
    STRIDE: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,
    TOPK: tl.constexpr,
    TOPK_BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUPS_BLOCK: tl.constexpr,
    TOPK_GROUPS: tl.constexpr,
    SIGMOID: tl.constexpr,
    NORMALIZE: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    known = place < EXPERTS
    value = tl.load(logits + row * STRIDE + place, mask=known, other=NONE).to(tl.float32)
    if SIGMOID:
        score = 1.0 / (1.0 + tl.exp(-value))
    else:
        mass = tl.exp(value - tl.max(value, axis=0))
        score = mass / tl.sum(mass, axis=0)
    merit = value
    if bias is not None:
        merit = score + tl.load(bias + place, mask=known, other=0.0).to(tl.float32)
    # NaN has no order: such a row still goes to experts that exist.
    merit = tl.where(known & (merit == merit), merit, NONE)
    free = known
    if GROUPS > 1:
        group = place // (EXPERTS // GROUPS)
        number = tl.arange(0, GROUPS_BLOCK)
        worth = tl.full([GROUPS_BLOCK], NONE, tl.float32)
        for one in tl.static_range(GROUPS):
            inside = known & (group == one)
            first = _best(merit, place, inside, BLOCK)
            together = tl.max(tl.where(inside, merit, NONE), axis=0)
            if bias is not None and EXPERTS // GROUPS > 1:
                together += tl.max(tl.where(inside & (place != first), merit, NONE), axis=0)
            worth = tl.where(number == one, together, worth)
        open_groups = number < GROUPS
        free = place < 0
        for _ in tl.static_range(TOPK_GROUPS):
            chosen = _best(worth, number, open_groups, GROUPS)
            open_groups = open_groups & (number != chosen)
            free = free | (known & (group == chosen))
    slot = tl.arange(0, TOPK_BLOCK)
    found_ids = tl.zeros([TOPK_BLOCK], tl.int32)
    found = tl.zeros([TOPK_BLOCK], tl.float32)
    for one in tl.static_range(TOPK):
        chosen = _best(merit, place, free, EXPERTS)
        free = free & (place != chosen)
        found_ids = tl.where(slot == one, chosen, found_ids)
        found = tl.where(slot == one, tl.sum(tl.where(place == chosen, score, 0.0), axis=0), found)
    if NORMALIZE:
        found = found / (tl.sum(found, axis=0) + LEAST)
    tl.store(ids + row * TOPK + slot, found_ids, mask=slot < TOPK)
    tl.store(shares + row * TOPK + slot, found * scale, mask=slot < TOPK)


def route_constants(
    experts: int, stride: int, topk: int, scoring: str, groups: int, topk_groups: int, normalize: bool
) -> tuple[dict[str, Constant], Schedule]:
    block = triton.next_power_of_2(experts)
    constants: dict[str, Constant] = {
        "STRIDE": stride,
        "EXPERTS": experts,
        "BLOCK": block,
        "TOPK": topk,
        "TOPK_BLOCK": triton.next_power_of_2(topk),
        "GROUPS": groups,
        "GROUPS_BLOCK": triton.next_power_of_2(groups),
        "TOPK_GROUPS": topk_groups,
        "SIGMOID": scoring == "sigmoid",
        "NORMALIZE": normalize,
    }
    return constants, Schedule(num_warps=max(1, min(4, block // 64)), num_stages=1)


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
    logits = logits if logits.stride(-1) == 1 else aligned(logits)
    rows, experts = logits.shape
    ids = torch.empty(rows, topk, dtype=torch.int32, device=logits.device)
    shares = torch.empty(rows, topk, dtype=torch.float32, device=logits.device)
    constants, schedule = route_constants(experts, logits.stride(0), topk, scoring, groups, topk_groups, normalize)
    launch(
        choose_experts,
        (rows,),
        {
            "logits": logits, "bias": bias, "ids": ids, "shares": shares,  "scale": float(scale),
        },
        constants,
        schedule,
    )  # fmt: skip
    return ids, shares
