"""A stack of decoder layers in one C call per step: no Python, no GIL and no dispatch between layers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.contracts import AttentionPlan, DecoderLayer, DecoderStack, KernelError, KVCache
from kernels.cpu.kv_cache import cache_struct
from kernels.cpu.library import LayerStruct, StackStruct, is_bf16, lib, native, typed
from kernels.cpu.paged_attention import FIT_ERRORS

ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}


@dataclass(slots=True)
class NativeStack:
    """The C structures and the tensors that they point to."""

    struct: StackStruct
    layers: ctypes.Array[LayerStruct]
    tensors: list[Tensor]


def pack_stack(layers: Sequence[DecoderLayer], caches: Sequence[KVCache], cos: Tensor, sin: Tensor) -> DecoderStack:
    if not layers or len(layers) != len(caches):
        raise KernelError(f"pack_stack: {len(layers)} layers, {len(caches)} caches")
    cosines, sines = typed("cos", cos, torch.float32), typed("sin", sin, torch.float32)
    tensors = [cosines, sines]
    packed = (LayerStruct * len(layers))()
    for target, layer, cache in zip(packed, layers, caches, strict=True):
        _fill(target, layer, cache, tensors)
    struct = StackStruct(
        ctypes.cast(packed, ctypes.POINTER(LayerStruct)),
        len(layers),
        layers[0].input_norm.shape[0],
        cos.shape[1],
        cosines.data_ptr(),
        sines.data_ptr(),
    )
    return DecoderStack(tuple(layers), tuple(caches), cos, sin, NativeStack(struct, packed, tensors))


def decoder_stack(
    hidden: Tensor,
    stack: DecoderStack,
    plan: AttentionPlan,
    positions: Tensor,
    slot_mapping: Tensor,
    wanted: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    native_stack: NativeStack = stack.data
    rows, width = plan.num_rows, native_stack.struct.hidden_size
    if tuple(hidden.shape) != (rows, width) or positions.shape[0] != rows or slot_mapping.shape[0] != rows:
        raise KernelError(
            f"decoder_stack: hidden {tuple(hidden.shape)}, {positions.shape[0]} positions, "
            f"{slot_mapping.shape[0]} slots; the plan expects {rows} rows of {width}"
        )
    x = native(hidden)
    residual = torch.empty_like(x)
    where, slots = typed("positions", positions, torch.int64), typed("slot_mapping", slot_mapping, torch.int64)
    chosen = None if wanted is None else typed("wanted", wanted, torch.int64)
    count = rows if chosen is None else chosen.shape[0]
    error = lib().esc_run_stack(
        ctypes.byref(native_stack.struct),
        plan.data.handle,
        where.data_ptr(),
        slots.data_ptr(),
        x.data_ptr(),
        residual.data_ptr(),
        None if chosen is None else chosen.data_ptr(),
        count,
        stack.cos.shape[0],
        is_bf16(x),
    )
    if error:
        raise KernelError(f"decoder_stack: {FIT_ERRORS[error]}")
    return x[:count].to(hidden.dtype), residual[:count].to(hidden.dtype)


def _fill(target: LayerStruct, layer: DecoderLayer, cache: KVCache, tensors: list[Tensor]) -> None:
    if layer.activation not in ACTIVATIONS:
        raise KernelError(f"activation {layer.activation!r} is unknown; choose one of {', '.join(ACTIVATIONS)}")
    if (layer.q_norm is None) != (layer.k_norm is None):
        raise KernelError("pack_stack: q_norm and k_norm come together or not at all")
    if layer.qkv.out_features != (layer.num_heads + 2 * layer.num_kv_heads) * layer.head_dim:
        raise KernelError(f"pack_stack: qkv has {layer.qkv.out_features} outputs, which do not match its heads")
    for name in ("qkv", "o", "gate_up", "down"):
        setattr(target, name, ctypes.pointer(getattr(layer, name).data.struct))
    for name in ("input_norm", "post_attention_norm", "q_norm", "k_norm"):
        weight: Tensor | None = getattr(layer, name)
        if weight is not None:
            wide = weight.float().contiguous()
            tensors.append(wide)
            setattr(target, name, wide.data_ptr())
    target.cache = cache_struct(cache)
    target.heads, target.kv_heads, target.dim = layer.num_heads, layer.num_kv_heads, layer.head_dim
    target.window, target.softcap = layer.window or 0, layer.softcap or 0.0
    target.eps, target.norm_offset, target.scale = layer.eps, layer.norm_offset, layer.scale
    target.gelu = ACTIVATIONS[layer.activation]
