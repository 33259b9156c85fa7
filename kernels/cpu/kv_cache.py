"""The paged KV cache in lane-friendly tiles (layout: `csrc/attention.h`). float16 caches are held as float32."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.contracts import KernelError, KVCache
from kernels.cpu.library import CacheStruct, is_bf16, lib, native, typed

TILE = 16


def allocate_kv_cache(
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> KVCache:
    if torch.device(device).type != "cpu":
        raise KernelError(f"allocate_kv_cache: the CPU kernels cannot use device {device}")
    if head_dim % 2:
        raise KernelError(f"allocate_kv_cache: head_dim {head_dim} is odd")
    if dtype is torch.float8_e4m3fn:
        raise KernelError("allocate_kv_cache: the CPU kernels keep no float8 cache; use bfloat16")
    stored = torch.bfloat16 if dtype is torch.bfloat16 else torch.float32
    slots = -(-block_size // TILE) * TILE
    padded = -(-head_dim // TILE) * TILE
    key = torch.empty(num_blocks, num_kv_heads, slots * head_dim, dtype=stored)
    value = torch.empty(num_blocks, num_kv_heads, slots * padded, dtype=stored)
    for storage in (key, value):
        # A sequence's blocks lie anywhere: on small pages each of them would cost an address look-up.
        lib().esc_advise_large_pages(storage.data_ptr(), storage.nbytes)
    return KVCache(key, value, num_blocks, block_size, num_kv_heads, head_dim)


def kv_write(cache: KVCache, key: Tensor, value: Tensor, slot_mapping: Tensor) -> None:
    expected = (slot_mapping.shape[0], cache.num_kv_heads, cache.head_dim)
    if tuple(key.shape) != expected or tuple(value.shape) != expected:
        raise KernelError(f"kv_write: key {tuple(key.shape)}, value {tuple(value.shape)}, expected {expected}")
    k, v = native(key), native(value)
    slots = typed("slot_mapping", slot_mapping, torch.int64)
    view = cache_struct(cache)
    if lib().esc_kv_write(view, k.data_ptr(), v.data_ptr(), slots.data_ptr(), slots.shape[0], is_bf16(k)):
        raise KernelError(f"kv_write: slots span [{int(slots.min())}, {int(slots.max())}], {_capacity(cache)}")


def read_kv(cache: KVCache, slots: Tensor) -> tuple[Tensor, Tensor]:
    where = typed("slots", slots, torch.int64)
    key = cache.key.new_empty(where.shape[0], cache.num_kv_heads, cache.head_dim)
    value = torch.empty_like(key)
    if lib().esc_read_kv(cache_struct(cache), key.data_ptr(), value.data_ptr(), where.data_ptr(), where.shape[0]):
        raise KernelError(f"read_kv: slots span [{int(where.min())}, {int(where.max())}], {_capacity(cache)}")
    return key, value


def cache_struct(cache: KVCache) -> CacheStruct:
    return CacheStruct(
        cache.key.data_ptr(),
        cache.value.data_ptr(),
        cache.num_blocks,
        cache.block_size,
        cache.num_kv_heads,
        cache.head_dim,
        is_bf16(cache.key),
    )


def _capacity(cache: KVCache) -> str:
    return f"the cache has {cache.num_blocks} blocks of {cache.block_size}"
