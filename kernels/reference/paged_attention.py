"""Paged attention (Kwon et al., arXiv 2309.06180) by gathering each sequence's blocks, then plain softmax attention."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.contracts import AttentionPlan, KernelError, KVCache, check_heads
from kernels.reference.kv_cache import stored


def plan_attention(
    query_start: Tensor,
    kv_len: Tensor,
    block_tables: Tensor,
    block_size: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    window: int | None = None,  # noqa: ARG001 - only balances the work of faster back ends
    deterministic: bool = False,
) -> AttentionPlan:
    check_heads("plan_attention", num_heads, num_kv_heads)
    sequences = kv_len.shape[0]
    if query_start.shape[0] != sequences + 1 or block_tables.shape[0] != sequences:
        raise KernelError(
            f"plan_attention: {sequences} lengths, {query_start.shape[0]} starts, {block_tables.shape[0]} tables"
        )
    return AttentionPlan(
        query_start, kv_len, block_tables, block_size, num_heads, num_kv_heads, head_dim, deterministic
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
    out = torch.zeros_like(q)
    starts, lengths = plan.query_start.tolist(), plan.kv_len.tolist()
    for index, length in enumerate(lengths):
        begin, end = starts[index], starts[index + 1]
        if begin == end or length == 0:
            continue
        places = torch.arange(length, device=q.device)
        slots = plan.block_tables[index].long()[places // plan.block_size] * plan.block_size + places % plan.block_size
        key, value = stored(cache.key, cache.key_scale, slots), stored(cache.value, cache.value_scale, slots)
        first = length - (end - begin)
        # One row at a time keeps the shape of every sum independent of the chunk that the row came in.
        size = 1 if plan.deterministic else end - begin
        for row in range(begin, end, size):
            stop = first + row - begin + size
            out[row : row + size] = _attend(
                q[row : row + size], key[:stop], value[:stop], scale, window, softcap, sinks
            )
    return out


def _attend(
    q: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Queries are the last `q.shape[0]` positions of `key`."""
    group = q.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q.float(), key) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    keys = torch.arange(key.shape[0], device=q.device)
    positions = keys[-q.shape[0] :].unsqueeze(1)
    visible = keys <= positions
    if window is not None:
        visible &= keys > positions - window
    scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        column = sinks.float().view(-1, 1, 1).expand(-1, scores.shape[1], 1)
        weights = torch.softmax(torch.cat((scores, column), dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, value).to(q.dtype)
