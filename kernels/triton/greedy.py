"""The most likely token of each row and its log-probability: one program a row, which it reads twice.

`best_of` is shared with the other ops that look at a whole row of logits. NaN counts as minus infinity everywhere.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.launch import (
    ALIGNMENT,
    Argument,
    Block,
    Constant,
    Pointer,
    Schedule,
    aligned,
    device_function,
    kernel,
    launch,
)

TILE = 4096
"""Logits that a program holds at a time."""
NONE = tl.constexpr(float("-inf"))
NO_ID = tl.constexpr(2**30)
"""Above every id."""


@device_function
def logits_at(row: Pointer, start: Block, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr) -> Block:
    """(ids, logits) of one tile in float32; minus infinity for NaN and past the end."""
    ids = start + tl.arange(0, BLOCK)
    value = tl.load(row + ids, mask=ids < VOCABULARY, other=NONE).to(tl.float32)
    return ids, tl.where(value == value, value, NONE)


@device_function
def best_of(row: Pointer, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr) -> Block:
    """(largest logit, lowest id that has it); id 0 where there is none."""
    best = tl.full([BLOCK], NONE, tl.float32)
    place = tl.arange(0, BLOCK)
    for start in range(0, VOCABULARY, BLOCK):
        ids, value = logits_at(row, start, VOCABULARY, BLOCK)
        larger = value > best
        best = tl.where(larger, value, best)
        place = tl.where(larger, ids, place)
    largest = tl.max(best, axis=0)
    return largest, tl.min(tl.where(best == largest, place, NO_ID), axis=0)


@kernel
def choose_best(
    logits: Pointer,
    ids: Pointer,
    logprobs: Pointer,
    STRIDE: tl.constexpr,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * STRIDE
    largest, best = best_of(base, VOCABULARY, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, VOCABULARY, BLOCK):
        _, value = logits_at(base, start, VOCABULARY, BLOCK)
        total += tl.exp(value - largest)
    tl.store(ids + row, best.to(tl.int64))
    tl.store(logprobs + row, -tl.log(tl.sum(total, axis=0)))


def vocabulary_constants(vocabulary: int, stride: int, tile: int = TILE) -> tuple[dict[str, Constant], Schedule]:
    """For programs that walk over a row of logits."""
    block = min(tile, triton.next_power_of_2(vocabulary))
    constants: dict[str, Constant] = {"STRIDE": stride, "VOCABULARY": vocabulary, "BLOCK": block}
    return constants, Schedule(num_warps=max(1, min(16, block // 256)), num_stages=1)


def rows_of_logits(logits: Tensor) -> Tensor:
    """With ids side by side; rows may lie apart."""
    return logits if logits.stride(-1) == 1 and logits.data_ptr() % ALIGNMENT == 0 else aligned(logits)


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    logits = rows_of_logits(logits)
    rows, vocabulary = logits.shape
    ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
    logprobs = torch.empty(rows, dtype=torch.float32, device=logits.device)
    constants, schedule = vocabulary_constants(vocabulary, logits.stride(0))
    arguments: dict[str, Argument] = {"logits": logits, "ids": ids, "logprobs": logprobs}
    launch(choose_best, (rows,), arguments, constants, schedule)
    return ids, logprobs
