"""The paged KV cache: `[num_blocks, block_size, kv_heads, dim]`, so a slot is a row of the flattened first two axes."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.contracts import E4M3_MAX, KernelError, KVCache


def allocate_kv_cache(
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> KVCache:
    shape = (num_blocks, block_size, num_kv_heads, head_dim)
    key, value = (torch.empty(shape, dtype=dtype, device=device) for _ in range(2))
    return KVCache(key, value, num_blocks, block_size, num_kv_heads, head_dim)


def kv_write(cache: KVCache, key: Tensor, value: Tensor, slot_mapping: Tensor) -> None:
    expected = (slot_mapping.shape[0], cache.num_kv_heads, cache.head_dim)
    if tuple(key.shape) != expected or tuple(value.shape) != expected:
        raise KernelError(f"kv_write: key {tuple(key.shape)}, value {tuple(value.shape)}, expected {expected}")
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    if cache.key.dtype is torch.float8_e4m3fn:
        _write_float8(cache.key, key[kept], slots, cache.key_scale)
        _write_float8(cache.value, value[kept], slots, cache.value_scale)
        return
    cache.key.flatten(0, 1)[slots] = key[kept].to(cache.key.dtype)
    cache.value.flatten(0, 1)[slots] = value[kept].to(cache.value.dtype)


def read_kv(cache: KVCache, slots: Tensor) -> tuple[Tensor, Tensor]:
    if cache.key.dtype is torch.float8_e4m3fn:
        return stored(cache.key, cache.key_scale, slots), stored(cache.value, cache.value_scale, slots)
    return cache.key.flatten(0, 1)[slots], cache.value.flatten(0, 1)[slots]


def _write_float8(into: Tensor, rows: Tensor, slots: Tensor, scale: float) -> None:
    codes = (rows.float() * (1.0 / scale)).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    # Indexed stores of float8 do not exist on every device; of bytes they do.
    into.view(torch.uint8).flatten(0, 1)[slots] = codes.view(torch.uint8)


def stored(storage: Tensor, scale: float, slots: Tensor) -> Tensor:
    """float32 `[n, kv_heads, dim]` of a cache in any dtype."""
    if storage.dtype is torch.float8_e4m3fn:
        return storage.view(torch.uint8).flatten(0, 1)[slots].view(torch.float8_e4m3fn).float() * scale
    return storage.flatten(0, 1)[slots].float()
