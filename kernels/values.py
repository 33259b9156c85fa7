"""The values that pass between ops: caches, plans, layers and evidence. No op and no choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.weights import PackedLinear


@dataclass(slots=True)
class KVCache:
    """Keys and values of one layer for all blocks. The layout of `key` and `value` is the back end's own."""

    key: Tensor
    value: Tensor
    num_blocks: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    key_scale: float = 1.0
    """Of float8 caches: what is stored times the scale is the key."""
    value_scale: float = 1.0

    @property
    def nbytes(self) -> int:
        return self.key.nbytes + self.value.nbytes


@dataclass(slots=True)
class AttentionPlan:
    """One step's batch geometry and work split, made once and shared by all layers.

    Query i of sequence s is row `query_start[s] + i` and sits at position `kv_len[s] - query_len[s] + i`.
    """

    query_start: Tensor
    kv_len: Tensor
    block_tables: Tensor
    block_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    deterministic: bool = False
    data: Any = None
    """Private to the back end."""

    @property
    def num_rows(self) -> int:
        return int(self.query_start[-1])


@dataclass(slots=True)
class PackedExperts:
    """The gated feed-forward blocks of one layer. Made by `pack_experts`, read by `experts` of the same back end."""

    first: int
    """Number of the first expert that lies here; the others follow it."""
    count: int
    hidden: int
    intermediate: int
    dtype: torch.dtype
    """Of activations in and out."""
    deterministic: bool
    data: Any
    """Private to the back end."""
    nbytes: int = 0


@dataclass(slots=True)
class DecoderLayer:
    """One pre-norm decoder layer: norm, qkv, (head norms), rope, attention, o, add+norm, gate_up, act*mul, down.

    `qkv` stacks q `[num_heads*head_dim]`, k and v `[num_kv_heads*head_dim]` along its outputs; `gate_up` stacks gate
    and up. Families with other wiring (sandwich norms, experts) call the single ops instead.
    """

    input_norm: Tensor
    post_attention_norm: Tensor
    qkv: PackedLinear
    o: PackedLinear
    gate_up: PackedLinear
    down: PackedLinear
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    scale: float
    norm_offset: float = 0.0
    activation: str = "silu"
    """`silu` or `gelu_tanh`."""
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    window: int | None = None
    softcap: float | None = None


@dataclass(slots=True)
class DecoderStack:
    """Layers bound to their caches and rotary tables, ready to run in one call. Rebuild it when caches move."""

    layers: Sequence[DecoderLayer]
    caches: Sequence[KVCache]
    cos: Tensor
    sin: Tensor
    data: Any = None
    """Private to the back end."""


@dataclass(slots=True)
class RowStats:
    """Evidence per row of raw logits, float32 `[rows]`; `rank` is int64 and counts from 1."""

    logprob: Tensor
    logsumexp: Tensor
    entropy: Tensor
    """Nats."""
    margin: Tensor
    """Difference of the two highest probabilities."""
    rank: Tensor
    """1 + how many tokens are strictly more likely than the asked one."""
    top_ids: Tensor
    """int64 `[rows, topk]`, most likely first; equal logits: lower id first."""
    top_logprobs: Tensor
