"""Evidence about each row of raw logits: one program a row, which it reads twice, and once more per listed token."""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from kernels.contracts import KernelError, RowStats
from kernels.triton.greedy import NO_ID, NONE, best_of, logits_at, rows_of_logits, vocabulary_constants
from kernels.triton.launch import Pointer, aligned, i32, i64, kernel, launch


@kernel
def describe_rows(
    logits: Pointer,
    tokens: Pointer,
    values: Pointer,
    ranks: Pointer,
    top_ids: Pointer,
    top_logprobs: Pointer,
    rows: i64,
    topk: i32,
    STRIDE: tl.constexpr,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * STRIDE
    largest, best = best_of(base, VOCABULARY, BLOCK)
    token = tl.load(tokens + row)
    known = (token >= 0) & (token < VOCABULARY)
    chosen = tl.load(base + tl.where(known, token, 0)).to(tl.float32)
    chosen = tl.where(known, chosen, float("nan"))
    total, weighted = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    second = tl.full([BLOCK], NONE, tl.float32)
    above = tl.zeros([BLOCK], tl.int32)
    for start in range(0, VOCABULARY, BLOCK):
        ids, value = logits_at(base, start, VOCABULARY, BLOCK)
        mass = tl.exp(value - largest)
        total += mass
        weighted += tl.where(mass > 0.0, mass * (value - largest), 0.0)
        second = tl.maximum(second, tl.where(ids == best, NONE, value))
        above += (value > chosen).to(tl.int32)
    sum_of_masses = tl.sum(total, axis=0)
    log_total = tl.log(sum_of_masses)
    runner_up = tl.exp(tl.max(second, axis=0) - largest)
    tl.store(values + row, chosen - largest - log_total)
    tl.store(values + rows + row, largest + log_total)
    tl.store(values + 2 * rows + row, log_total - tl.sum(weighted, axis=0) / sum_of_masses)
    tl.store(values + 3 * rows + row, (1.0 - runner_up) / sum_of_masses)
    tl.store(ranks + row, tl.sum(above, axis=0).to(tl.int64) + 1)
    # The next of the order (logit down, id up) after the one before it.
    last, last_id = largest, best
    for place in range(0, topk):
        at = row * topk + place
        tl.store(top_ids + at, last_id.to(tl.int64))
        tl.store(top_logprobs + at, last - largest - log_total)
        left, left_id = tl.full([BLOCK], NONE, tl.float32), tl.full([BLOCK], NO_ID, tl.int32)
        for start in range(0, VOCABULARY, BLOCK):
            ids, value = logits_at(base, start, VOCABULARY, BLOCK)
            after = (value < last) | ((value == last) & (ids > last_id))
            better = after & (ids < VOCABULARY) & ((value > left) | (left_id == NO_ID))
            left = tl.where(better, value, left)
            left_id = tl.where(better, ids, left_id)
        last = tl.max(left, axis=0)
        last_id = tl.min(tl.where(left == last, left_id, NO_ID), axis=0)


def row_stats(logits: Tensor, token_ids: Tensor, topk: int = 0) -> RowStats:
    """A token outside of the vocabulary raises where ids are on the host, and has NaN where they are on a device."""
    logits = rows_of_logits(logits)
    rows, vocabulary = logits.shape
    topk = min(topk, vocabulary)
    if rows and token_ids.device.type == "cpu" and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < vocabulary:
        span = f"[{int(token_ids.min())}, {int(token_ids.max())}]"
        raise KernelError(f"row_stats: token ids span {span}, vocabulary {vocabulary}")
    values = torch.empty(4, rows, dtype=torch.float32, device=logits.device)
    ranks = torch.empty(rows, dtype=torch.int64, device=logits.device)
    top_ids = torch.empty(rows, topk, dtype=torch.int64, device=logits.device)
    top_logprobs = torch.empty(rows, topk, dtype=torch.float32, device=logits.device)
    constants, schedule = vocabulary_constants(vocabulary, logits.stride(0))
    launch(
        describe_rows,
        (rows,),
        {
            "logits": logits, "tokens": aligned(token_ids), "values": values, "ranks": ranks, "top_ids": top_ids,
            "top_logprobs": top_logprobs, "rows": rows, "topk": topk,
        },
        constants,
        schedule,
    )  # fmt: skip
    return RowStats(values[0], values[1], values[2], values[3], ranks, top_ids, top_logprobs)
