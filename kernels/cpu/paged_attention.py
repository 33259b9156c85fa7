"""Paged attention for prefill chunks and decodes in one call. Layout and split rules: `csrc/attention.h`."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kernels.contracts import AttentionPlan, KernelError, KVCache, check_heads
from kernels.cpu.kv_cache import cache_struct
from kernels.cpu.library import is_bf16, lib, native, sync_threads, typed

PLAN_ERRORS = {
    1: "query_start must begin at 0 and never fall",
    2: "a kv_len is shorter than its queries or longer than its block table",
    3: "a block table has a negative block inside the visible length",
}
FIT_ERRORS = {
    1: "a block table names a block that the cache does not have",
    2: "the plan was made for a window whose older blocks are gone; this call sees further",
    3: "plan and cache differ in block size, kv heads or head dimension",
    4: "a position lies outside the rotary tables",
    5: "a slot lies outside the cache",
    6: "the wanted rows are not ascending or lie outside the step",
}


class NativePlan:
    """Owns the C++ plan; freed with this object."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __del__(self) -> None:
        lib().esc_plan_free(self.handle)


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
    starts = typed("query_start", query_start, torch.int32)
    lengths = typed("kv_len", kv_len, torch.int32)
    tables = typed("block_tables", block_tables, torch.int32)
    sequences = lengths.shape[0]
    if starts.shape[0] != sequences + 1 or tables.shape[0] != sequences:
        raise KernelError(f"plan_attention: {sequences} lengths, {starts.shape[0]} starts, {tables.shape[0]} tables")
    sync_threads()
    error = ctypes.c_int()
    handle = lib().esc_plan_new(
        starts.data_ptr(),
        lengths.data_ptr(),
        tables.data_ptr(),
        sequences,
        tables.shape[1],
        block_size,
        num_heads,
        num_kv_heads,
        head_dim,
        window or 0,
        deterministic,
        error,
    )
    plan = NativePlan(handle)
    if error.value:
        raise KernelError(f"plan_attention: {PLAN_ERRORS[error.value]}")
    return AttentionPlan(starts, lengths, tables, block_size, num_heads, num_kv_heads, head_dim, deterministic, plan)


def paged_attention(
    q: Tensor,
    cache: KVCache,
    plan: AttentionPlan,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    if sinks is not None:
        raise KernelError("paged_attention: the CPU kernels have no attention sinks; use kernel_backend reference")
    expected = (plan.num_rows, plan.num_heads, plan.head_dim)
    if tuple(q.shape) != expected:
        raise KernelError(f"paged_attention: q has shape {tuple(q.shape)}, the plan expects {expected}")
    source = native(q)
    out = torch.empty_like(source)
    error = lib().esc_attend(
        plan.data.handle,
        cache_struct(cache),
        source.data_ptr(),
        out.data_ptr(),
        scale,
        window or 0,
        softcap or 0.0,
        is_bf16(source),
    )
    if error:
        raise KernelError(f"paged_attention: {FIT_ERRORS[error]}")
    return out.to(q.dtype)
