"""A stack of pre-norm decoder layers, written with the single ops: the oracle of the fused versions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.contracts import AttentionPlan, DecoderLayer, DecoderStack, KernelError, KVCache
from kernels.reference.gated import gelu_tanh_mul, silu_mul
from kernels.reference.kv_cache import kv_write
from kernels.reference.linear import linear
from kernels.reference.paged_attention import paged_attention
from kernels.reference.rms_norm import add_rms_norm, head_rms_norm, rms_norm
from kernels.reference.rope import rope

ACTIVATIONS = {"silu": silu_mul, "gelu_tanh": gelu_tanh_mul}


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
) -> tuple[Tensor, Tensor]:
    residual: Tensor | None = None
    for layer, cache in zip(stack.layers, stack.caches, strict=True):
        if residual is None:
            residual = hidden
            hidden = rms_norm(hidden, layer.input_norm, layer.eps, layer.norm_offset)
        else:
            hidden, residual = add_rms_norm(hidden, residual, layer.input_norm, layer.eps, layer.norm_offset)
        hidden = _attention(hidden, layer, cache, stack, plan, positions, slot_mapping)
        hidden, residual = add_rms_norm(hidden, residual, layer.post_attention_norm, layer.eps, layer.norm_offset)
        hidden = linear(ACTIVATIONS[layer.activation](linear(hidden, layer.gate_up)), layer.down)
    if residual is None:
        raise KernelError("decoder_stack: the stack has no layers")
    return (hidden, residual) if wanted is None else (hidden[wanted], residual[wanted])


def _attention(
    hidden: Tensor,
    layer: DecoderLayer,
    cache: KVCache,
    stack: DecoderStack,
    plan: AttentionPlan,
    positions: Tensor,
    slot_mapping: Tensor,
) -> Tensor:
    rows, heads, kv_heads, dim = hidden.shape[0], layer.num_heads, layer.num_kv_heads, layer.head_dim
    fused = linear(hidden, layer.qkv)
    q, k, v = (
        part.reshape(rows, -1, dim) for part in torch.split(fused, [heads * dim, kv_heads * dim, kv_heads * dim], 1)
    )
    if layer.q_norm is not None and layer.k_norm is not None:
        q = head_rms_norm(q, layer.q_norm, layer.eps, layer.norm_offset)
        k = head_rms_norm(k, layer.k_norm, layer.eps, layer.norm_offset)
    rope(q, k, stack.cos, stack.sin, positions)
    kv_write(cache, k, v, slot_mapping)
    attended = paged_attention(q, cache, plan, layer.scale, layer.window, layer.softcap)
    return linear(attended.reshape(rows, heads * dim), layer.o)
