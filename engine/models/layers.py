"""Layer parts for families whose wiring the fused stack does not know: attention, gated feed-forward, experts.

Pure functions over frozen weights and the ops; a cache is the only thing they write.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model_config import ModelConfig, MoeParameters
from engine.models.decoder import ForwardBatch, split_qkv
from engine.models.source import WeightSource
from kernels.contracts import KVCache, Ops, PackedExperts, PackedLinear


@dataclass(frozen=True, slots=True)
class RotaryTables:
    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, slots=True)
class Attention:
    """`qkv` stacks q, k and v along its outputs; `q_norm` and `k_norm` normalize heads where the family does."""

    qkv: PackedLinear
    o: PackedLinear
    q_norm: Tensor | None
    k_norm: Tensor | None
    window: int | None
    norm_offset: float = 0.0


def load_attention(
    source: WeightSource, config: ModelConfig, index: int, *, qk_norm: bool, norm_offset: float = 0.0
) -> Attention:
    prefix, dim, bias = f"model.layers.{index}.self_attn", config.head_dim, config.attention_bias
    parts = [
        (f"{prefix}.q_proj", config.num_heads * dim),
        (f"{prefix}.k_proj", config.num_kv_heads * dim),
        (f"{prefix}.v_proj", config.num_kv_heads * dim),
    ]
    return Attention(
        qkv=source.linear(parts, config.hidden_size, bias),
        o=source.linear([(f"{prefix}.o_proj", config.hidden_size)], config.num_heads * dim, bias),
        q_norm=source.vector(f"{prefix}.q_norm.weight", dim) if qk_norm else None,
        k_norm=source.vector(f"{prefix}.k_norm.weight", dim) if qk_norm else None,
        window=config.layer_windows[index],
        norm_offset=norm_offset,
    )


def attend(
    ops: Ops,
    config: ModelConfig,
    weights: Attention,
    hidden: Tensor,
    cache: KVCache,
    rotary: RotaryTables,
    batch: ForwardBatch,
) -> Tensor:
    """[rows, hidden] -> [rows, hidden]; keys and values of these rows are in `cache` afterwards."""
    q, k, v = split_qkv(ops.linear(hidden, weights.qkv), config)
    if weights.q_norm is not None and weights.k_norm is not None:
        q = ops.head_rms_norm(q, weights.q_norm, config.norm_eps, weights.norm_offset)
        k = ops.head_rms_norm(k, weights.k_norm, config.norm_eps, weights.norm_offset)
    ops.rope(q, k, rotary.cos, rotary.sin, batch.positions)
    ops.kv_write(cache, k, v, batch.slot_mapping)
    mixed = ops.paged_attention(q, cache, batch.plan, config.attention_scale, weights.window, config.attention_softcap)
    return ops.linear(mixed.reshape(hidden.shape[0], -1), weights.o)


@dataclass(frozen=True, slots=True)
class GatedBlock:
    gate_up: PackedLinear
    down: PackedLinear


def load_gated(source: WeightSource, names: tuple[str, str, str], hidden: int, size: int) -> GatedBlock:
    """`names` of gate, up and down, without `.weight`."""
    gate, up, down = names
    return GatedBlock(source.linear([(gate, size), (up, size)], hidden), source.linear([(down, hidden)], size))


def feed_forward(ops: Ops, weights: GatedBlock, hidden: Tensor, activation: str) -> Tensor:
    """`activation` is a value of `activations.GATED`."""
    gate_up = ops.linear(hidden, weights.gate_up)
    mixed = ops.silu_mul(gate_up) if activation == "silu" else ops.gelu_tanh_mul(gate_up)
    return ops.linear(mixed, weights.down)


@dataclass(frozen=True, slots=True)
class ExpertBlock:
    router: PackedLinear
    experts: PackedExperts


def mix_experts(ops: Ops, weights: ExpertBlock, hidden: Tensor, moe: MoeParameters, activation: str) -> Tensor:
    """Each row goes through its k likeliest experts, weighted by the router's softmax."""
    logits = ops.linear(hidden, weights.router, out_dtype=torch.float32)
    ids, shares = ops.route(logits, moe.experts_per_token, normalize=moe.normalize_weights)
    return ops.experts(hidden, ids, shares, weights.experts, activation)
