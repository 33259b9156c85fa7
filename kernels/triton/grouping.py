"""Rows in the order of their experts, for products that take a block of rows of one expert at a time.

A slot is one choice of one row: `row * topk + place`. Each expert's slots, ascending, fill whole blocks; what is left
of its last block holds `slots`, which no row has. Counted and placed on the device, without atomics: the order is the
same every time, and the host learns nothing.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.launch import Constant, Pointer, Schedule, i64, kernel, launch

TILE = 1024
"""Slots that a program looks at at a time."""


@kernel
def count_slots(ids: Pointer, counts: Pointer, slots: i64, first: i64, BLOCK: tl.constexpr) -> None:
    """How many slots each expert has."""
    expert = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.int32)
    for start in range(0, slots, BLOCK):
        slot = start + tl.arange(0, BLOCK)
        chosen = tl.load(ids + slot, mask=slot < slots, other=-1)
        total += ((chosen == first + expert) & (slot < slots)).to(tl.int32)
    tl.store(counts + expert, tl.sum(total, axis=0))


@kernel
def place_slots(
    ids: Pointer,
    counts: Pointer,
    order: Pointer,
    owners: Pointer,
    slots: i64,
    first: i64,
    EXPERTS: tl.constexpr,
    EXPERTS_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """`ROWS` of a block. What this leaves unwritten of `order` and `owners` holds `slots` and -1 already."""
    expert = tl.program_id(0)
    number = tl.arange(0, EXPERTS_BLOCK)
    count = tl.load(counts + number, mask=number < EXPERTS, other=0)
    blocks = (count + ROWS - 1) // ROWS
    start_block = tl.sum(tl.where(number < expert, blocks, 0), axis=0)
    own_blocks = tl.sum(tl.where(number == expert, blocks, 0), axis=0)
    for at in range(0, own_blocks, BLOCK):
        block = at + tl.arange(0, BLOCK)
        owner = tl.zeros([BLOCK], tl.int32) + expert
        tl.store(owners + start_block + block, owner, mask=block < own_blocks)
    position = start_block.to(tl.int64) * ROWS
    for start in range(0, slots, BLOCK):
        slot = start + tl.arange(0, BLOCK)
        chosen = tl.load(ids + slot, mask=slot < slots, other=-1)
        own = ((chosen == first + expert) & (slot < slots)).to(tl.int32)
        to = position + tl.cumsum(own, axis=0) - 1
        tl.store(order + to, slot.to(tl.int32), mask=own > 0)
        position += tl.sum(own, axis=0)


def grouping_constants(experts: int, rows: int) -> tuple[dict[str, Constant], dict[str, Constant], Schedule]:
    """Of `count_slots` and of `place_slots`, for blocks of `rows`."""
    counting: dict[str, Constant] = {"BLOCK": TILE}
    placing: dict[str, Constant] = {"EXPERTS": experts, "EXPERTS_BLOCK": triton.next_power_of_2(experts), "ROWS": rows}
    return counting, counting | placing, Schedule(num_warps=4, num_stages=1)


def group_slots(ids: Tensor, first: int, experts: int, rows: int) -> tuple[Tensor, Tensor]:
    """`(order int32 [blocks * rows], owners int32 [blocks])` of `ids [rows, topk]`; experts count from `first`.

    Few choices, of which hardly two meet in one expert, get a block each.
    """
    slots = ids.numel()
    if slots * 4 <= experts:
        order = torch.full((slots, rows), slots, dtype=torch.int32, device=ids.device)
        order[:, 0] = torch.arange(slots, dtype=torch.int32, device=ids.device)
        owner = ids.flatten() - first
        return order.flatten(), torch.where((owner >= 0) & (owner < experts), owner, -1).to(torch.int32)
    blocks = min(slots, -(-(slots + experts * (rows - 1)) // rows))
    order = torch.full((blocks * rows,), slots, dtype=torch.int32, device=ids.device)
    owners = torch.full((blocks,), -1, dtype=torch.int32, device=ids.device)
    counts = torch.empty(experts, dtype=torch.int32, device=ids.device)
    counting, placing, schedule = grouping_constants(experts, rows)
    launch(count_slots, (experts,), {"ids": ids, "counts": counts, "slots": slots, "first": first}, counting, schedule)
    launch(
        place_slots,
        (experts,),
        {"ids": ids, "counts": counts, "order": order, "owners": owners, "slots": slots, "first": first},
        placing,
        schedule,
    )
    return order, owners
