"""A stack of pre-norm decoder layers, composed of the single ops that dispatch chose: the oracle of the fused versions.

The only reference op that needs others, so it takes them: `dispatch.load` binds `ops`. With a GPU back end of some ops
those run there; with none this is the reference through and through.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.contracts import AttentionPlan, DecoderLayer, DecoderStack, KernelError, KVCache, Ops

ACTIVATIONS = {"silu": "silu_mul", "gelu_tanh": "gelu_tanh_mul"}


def pack_stack(layers: Sequence[DecoderLayer], caches: Sequence[KVCache], cos: Tensor, sin: Tensor) -> DecoderStack:
    if len(layers) != len(caches):
        raise KernelError(f"pack_stack: {len(layers)} layers, {len(caches)} caches")
    return DecoderStack(tuple(layers), tuple(caches), cos, sin)


def decoder_stack(
    hidden: Tensor,
    stack: DecoderStack,
    plan: AttentionPlan,
    positions: Tensor,
    slot_mapping: Tensor,
    wanted: Tensor | None = None,
    *,
    ops: Ops,
) -> tuple[Tensor, Tensor]:
    residual: Tensor | None = None
    for layer, cache in zip(stack.layers, stack.caches, strict=True):
        if residual is None:
            residual = hidden
            hidden = ops.rms_norm(hidden, layer.input_norm, layer.eps, layer.norm_offset)
        else:
            hidden, residual = ops.add_rms_norm(hidden, residual, layer.input_norm, layer.eps, layer.norm_offset)
        hidden = _attention(ops, hidden, layer, cache, stack, plan, positions, slot_mapping)
        hidden, residual = ops.add_rms_norm(hidden, residual, layer.post_attention_norm, layer.eps, layer.norm_offset)
        gate = getattr(ops, ACTIVATIONS[layer.activation])
        hidden = ops.linear(gate(ops.linear(hidden, layer.gate_up)), layer.down)
    if residual is None:
        raise KernelError("decoder_stack: the stack has no layers")
    return (hidden, residual) if wanted is None else (hidden[wanted], residual[wanted])


def _attention(
    ops: Ops,
    hidden: Tensor,
    layer: DecoderLayer,
    cache: KVCache,
    stack: DecoderStack,
    plan: AttentionPlan,
    positions: Tensor,
    slot_mapping: Tensor,
) -> Tensor:
    rows, heads, kv_heads, dim = hidden.shape[0], layer.num_heads, layer.num_kv_heads, layer.head_dim
    fused = ops.linear(hidden, layer.qkv)
    q, k, v = (
        part.reshape(rows, -1, dim) for part in torch.split(fused, [heads * dim, kv_heads * dim, kv_heads * dim], 1)
    )
    if layer.q_norm is not None and layer.k_norm is not None:
        q = ops.head_rms_norm(q, layer.q_norm, layer.eps, layer.norm_offset)
        k = ops.head_rms_norm(k, layer.k_norm, layer.eps, layer.norm_offset)
    ops.rope(q, k, stack.cos, stack.sin, positions)
    ops.kv_write(cache, k, v, slot_mapping)
    attended = ops.paged_attention(q, cache, plan, layer.scale, layer.window, layer.softcap)
    return ops.linear(attended.reshape(rows, heads * dim), layer.o)
