"""Paged attention (arXiv 2309.06180), one kernel for prefill chunks and decodes: flash attention over block tables.

A program takes a few query positions of one sequence with all query heads of one KV head, so that each tile of keys is
loaded once for the whole group. Where few programs would run, the keys of a sequence are split into segments whose
partial results are combined by a second kernel (flash decoding).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.contracts import AttentionPlan, KernelError, KVCache, check_heads
from kernels.reference.paged_attention import plan_attention as plan_of_reference
from kernels.triton.float8 import decode
from kernels.triton.kv_cache import as_bytes
from kernels.triton.launch import Constant, Pointer, Schedule, f32, i64, kernel, launch

SEGMENTS = 16
FEW_PROGRAMS = 128
"""With fewer programs than that, a GPU of about as many multiprocessors is not filled: keys are split."""
SMALLEST_DOT = 16
PREFILL_ROWS = 64
"""Query rows (positions times heads of a group) of a program where chunks are long."""
LONG_CHUNK = 8
"""Rows a sequence has on average from which on chunks count as long."""


@kernel
def attend(
    q: Pointer,
    key: Pointer,
    value: Pointer,
    out: Pointer,
    maxima: Pointer,
    sums: Pointer,
    starts: Pointer,
    lengths: Pointer,
    tables: Pointer,
    sinks: Pointer,
    sequences: i64,
    table_stride: i64,
    scale: f32,
    key_scale: f32,
    value_scale: f32,
    Q_STRIDE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    SLOT_STRIDE: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    FLOAT8: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    GROUP: tl.constexpr = HEADS // KV_HEADS
    POSITIONS: tl.constexpr = ROWS // GROUP
    program = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    segment = tl.program_id(2)
    # Sequence s owns the programs from `starts[s] // POSITIONS + s` on; its last ones may be empty.
    low = program * 0
    high = low + sequences
    while low < high:
        middle = (low + high) // 2
        if tl.load(starts + middle).to(tl.int64) // POSITIONS + middle <= program:
            low = middle + 1
        else:
            high = middle
    sequence = low - 1
    begin = tl.load(starts + sequence).to(tl.int64)
    queries = tl.load(starts + sequence + 1).to(tl.int64) - begin
    first = (program - begin // POSITIONS - sequence) * POSITIONS
    if first >= queries:
        return
    length = tl.load(lengths + sequence).to(tl.int64)
    row = tl.arange(0, ROWS)
    query = first + row // GROUP
    head = kv_head * GROUP + row % GROUP
    wanted = (row < POSITIONS * GROUP) & (query < queries)
    position = length - queries + query
    column = tl.arange(0, PADDED)
    inside = column < DIM
    at = (begin + tl.where(wanted, query, 0)) * Q_STRIDE + head * DIM
    queried = tl.load(q + at[:, None] + column[None, :], mask=wanted[:, None] & inside[None, :], other=0.0)

    last = tl.minimum(length, length - queries + tl.minimum(first + POSITIONS, queries))
    start = last * 0
    if WINDOW > 0:
        start = tl.maximum(start, (length - queries + first - WINDOW + 1) // TILE * TILE)
    if SPLITS > 1:
        share = tl.cdiv(tl.cdiv(last - start, TILE), SPLITS) * TILE
        start = start + segment * share
        last = tl.minimum(last, start + share)
    if sinks is not None:
        if segment == 0:
            top = tl.load(sinks + head, mask=wanted, other=0.0).to(tl.float32)
            total = tl.full([ROWS], 1.0, tl.float32)
        else:
            top = tl.full([ROWS], float("-inf"), tl.float32)
            total = tl.zeros([ROWS], tl.float32)
    else:
        top = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, PADDED], tl.float32)
    place = tl.arange(0, TILE)
    for tile in range(start, last, TILE):
        keys = tile + place
        valid = keys < last
        block = tl.load(tables + sequence * table_stride + keys // BLOCK_SIZE, mask=valid, other=0).to(tl.int64)
        slot = block * BLOCK_STRIDE + keys % BLOCK_SIZE * SLOT_STRIDE + kv_head * DIM
        # Unused slots may hold NaN, and 0 * NaN is NaN: they are read as 0.
        filled = valid[:, None] & inside[None, :]
        k = tl.load(key + slot[:, None] + column[None, :], mask=filled, other=0)
        v = tl.load(value + slot[:, None] + column[None, :], mask=filled, other=0)
        if FLOAT8:
            k = (decode(k) * key_scale).to(queried.dtype)
            v = (decode(v) * value_scale).to(queried.dtype)
        scores = tl.dot(queried, tl.trans(k), input_precision="ieee") * scale
        if SOFTCAP > 0.0:
            scores = SOFTCAP * (1.0 - 2.0 / (tl.exp(2.0 * scores / SOFTCAP) + 1.0))
        visible = wanted[:, None] & valid[None, :] & (keys[None, :] <= position[:, None])
        if WINDOW > 0:
            visible = visible & (keys[None, :] > position[:, None] - WINDOW)
        scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        # A row that has seen no key yet: -inf minus -inf would be NaN.
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp(scores - shift[:, None])
        fade = tl.exp(top - shift)
        total = total * fade + tl.sum(weight, 1)
        mixed = mixed * fade[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        top = higher
    target = begin + query
    if SPLITS > 1:
        part = (target * HEADS + head) * SPLITS + segment
        tl.store(out + part[:, None] * PADDED + column[None, :], mixed, mask=wanted[:, None])
        tl.store(maxima + part, top, mask=wanted)
        tl.store(sums + part, total, mask=wanted)
    else:
        mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
        shown = wanted[:, None] & inside[None, :]
        tl.store(
            out + (target * HEADS + head)[:, None] * DIM + column[None, :], mixed.to(out.dtype.element_ty), mask=shown
        )


@kernel
def combine(
    parts: Pointer,
    maxima: Pointer,
    sums: Pointer,
    out: Pointer,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    place = tl.program_id(0).to(tl.int64) * HEADS + tl.program_id(1)
    segment = tl.arange(0, SPLITS)
    column = tl.arange(0, PADDED)
    top = tl.load(maxima + place * SPLITS + segment)
    highest = tl.max(top, 0)
    share = tl.exp(top - tl.where(highest == float("-inf"), 0.0, highest))
    total = tl.sum(tl.load(sums + place * SPLITS + segment) * share, 0)
    at = (place * SPLITS + segment)[:, None] * PADDED + column[None, :]
    mixed = tl.sum(tl.load(parts + at) * share[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out + place * DIM + column, mixed.to(out.dtype.element_ty), mask=column < DIM)


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What of a model and a step decides which variant runs."""

    q_stride: int
    """Of rows of `q`: they may lie in a fused product of q, k and v."""
    block_stride: int
    slot_stride: int
    heads: int
    kv_heads: int
    dim: int
    block_size: int
    window: int | None
    softcap: float | None
    float8: bool
    long_chunks: bool
    split: bool


def shape_of_step(
    q: Tensor, cache: KVCache, plan: AttentionPlan, window: int | None, softcap: float | None
) -> AttentionShape:
    """From numbers that the host knows without waiting for the device. One shape of all steps when deterministic."""
    sequences, rows = plan.kv_len.shape[0], q.shape[0]
    long_chunks = rows >= LONG_CHUNK * sequences and not plan.deterministic
    few = rows * plan.num_kv_heads < FEW_PROGRAMS
    return AttentionShape(
        q.stride(0),
        cache.key.stride(0),
        cache.key.stride(1),
        plan.num_heads,
        plan.num_kv_heads,
        plan.head_dim,
        plan.block_size,
        window,
        softcap,
        cache.key.dtype is torch.float8_e4m3fn,
        long_chunks,
        split=few and not long_chunks and not plan.deterministic,
    )


def attention_constants(shape: AttentionShape) -> tuple[dict[str, Constant], Schedule]:
    group = shape.heads // shape.kv_heads
    least = max(SMALLEST_DOT, triton.next_power_of_2(group))
    constants: dict[str, Constant] = {
        "Q_STRIDE": shape.q_stride,
        "BLOCK_STRIDE": shape.block_stride,
        "SLOT_STRIDE": shape.slot_stride,
        "HEADS": shape.heads,
        "KV_HEADS": shape.kv_heads,
        "DIM": shape.dim,
        "PADDED": max(SMALLEST_DOT, triton.next_power_of_2(shape.dim)),
        "BLOCK_SIZE": shape.block_size,
        "ROWS": max(PREFILL_ROWS, least) if shape.long_chunks else least,
        "TILE": 32,
        "WINDOW": shape.window or 0,
        "SOFTCAP": shape.softcap or 0.0,
        "FLOAT8": shape.float8,
        "SPLITS": SEGMENTS if shape.split else 1,
    }
    # A tile of 64 rows beside codes that are being decoded does not fit into the registers of 4 warps.
    wide = shape.long_chunks and (shape.float8 or shape.dim > 128)
    return constants, Schedule(num_warps=8 if wide else 4, num_stages=2)


def combine_constants(shape: AttentionShape) -> tuple[dict[str, Constant], Schedule]:
    padded = max(SMALLEST_DOT, triton.next_power_of_2(shape.dim))
    constants: dict[str, Constant] = {"HEADS": shape.heads, "DIM": shape.dim, "PADDED": padded, "SPLITS": SEGMENTS}
    return constants, Schedule(num_warps=2, num_stages=1)


def plan_attention(
    query_start: Tensor,
    kv_len: Tensor,
    block_tables: Tensor,
    block_size: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    window: int | None = None,
    deterministic: bool = False,
) -> AttentionPlan:
    check_heads("plan_attention", num_heads, num_kv_heads)
    for name, x in (("query_start", query_start), ("kv_len", kv_len), ("block_tables", block_tables)):
        if x.stride(-1) != 1:
            raise KernelError(f"plan_attention: {name} is not contiguous in its last dimension")
    return plan_of_reference(
        query_start, kv_len, block_tables, block_size, num_heads, num_kv_heads, head_dim, window, deterministic
    )


def paged_attention(
    q: Tensor,
    cache: KVCache,
    plan: AttentionPlan,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    rows, heads, dim = q.shape
    if (heads, dim) != (plan.num_heads, plan.head_dim):
        raise KernelError(
            f"paged_attention: q has shape {tuple(q.shape)}, the plan has {plan.num_heads} heads of {dim}"
        )
    if q.stride(2) != 1 or q.stride(1) != dim:
        q = q.contiguous()
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    shape = shape_of_step(q, cache, plan, window, softcap)
    constants, schedule = attention_constants(shape)
    sequences = plan.kv_len.shape[0]
    positions = int(constants["ROWS"] or 1) // (heads // plan.num_kv_heads)
    splits, padded = int(constants["SPLITS"] or 1), int(constants["PADDED"] or 1)
    parts = maxima = sums = None
    if splits > 1:
        parts = torch.empty(rows, heads, splits, padded, dtype=torch.float32, device=q.device)
        maxima, sums = (torch.empty(rows, heads, splits, dtype=torch.float32, device=q.device) for _ in range(2))
    launch(
        attend,
        (0 if rows == 0 else rows // positions + sequences, plan.num_kv_heads, splits),
        {
            "q": q,
            "key": as_bytes(cache.key),
            "value": as_bytes(cache.value),
            "out": out if parts is None else parts,
            "maxima": maxima,
            "sums": sums,
            "starts": plan.query_start,
            "lengths": plan.kv_len,
            "tables": plan.block_tables,
            "sinks": sinks,
            "sequences": sequences,
            "table_stride": plan.block_tables.stride(0),
            "scale": scale,
            "key_scale": cache.key_scale,
            "value_scale": cache.value_scale,
        },
        constants,
        schedule,
    )
    if parts is not None:
        arguments: dict[str, Tensor | int | float | None] = {"parts": parts, "maxima": maxima, "sums": sums, "out": out}
        launch(combine, (rows, heads), arguments, *combine_constants(shape))
    return out
