"""The paged KV cache `[num_blocks, block_size, kv_heads, dim]`: one program a row, or a piece of it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.contracts import KernelError, KVCache
from kernels.reference.kv_cache import allocate_kv_cache as allocate
from kernels.reference.kv_cache import read_kv as read
from kernels.triton.float8 import encode
from kernels.triton.launch import Constant, Pointer, Schedule, f32, kernel, launch

PIECE = 1024
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn)


@kernel
def write_rows(
    key: Pointer,
    value: Pointer,
    key_cache: Pointer,
    value_cache: Pointer,
    slots: Pointer,
    key_inverse: f32,
    value_inverse: f32,
    KEY_STRIDE: tl.constexpr,
    VALUE_STRIDE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    SLOT_STRIDE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    FLOAT8: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    if slot < 0:
        return
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    k = tl.load(key + row * KEY_STRIDE + column, mask=inside, other=0.0)
    v = tl.load(value + row * VALUE_STRIDE + column, mask=inside, other=0.0)
    at = slot // BLOCK_SIZE * BLOCK_STRIDE + slot % BLOCK_SIZE * SLOT_STRIDE + column
    if FLOAT8:
        tl.store(key_cache + at, encode(k.to(tl.float32) * key_inverse), mask=inside)
        tl.store(value_cache + at, encode(v.to(tl.float32) * value_inverse), mask=inside)
    else:
        tl.store(key_cache + at, k.to(key_cache.dtype.element_ty), mask=inside)
        tl.store(value_cache + at, v.to(value_cache.dtype.element_ty), mask=inside)


def write_constants(
    key_stride: int, value_stride: int, strides: tuple[int, int], block_size: int, width: int, float8: bool
) -> tuple[dict[str, Constant], Schedule]:
    """`strides` of the cache's blocks and slots; `width` numbers in a slot."""
    constants: dict[str, Constant] = {
        "KEY_STRIDE": key_stride,
        "VALUE_STRIDE": value_stride,
        "BLOCK_STRIDE": strides[0],
        "SLOT_STRIDE": strides[1],
        "BLOCK_SIZE": block_size,
        "WIDTH": width,
        "BLOCK": min(PIECE, triton.next_power_of_2(width)),
        "FLOAT8": float8,
    }
    return constants, Schedule(num_warps=4, num_stages=1)


def allocate_kv_cache(
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> KVCache:
    if dtype not in DTYPES:
        names = ", ".join(str(name).removeprefix("torch.") for name in DTYPES)
        raise KernelError(f"allocate_kv_cache: a cache of {dtype} is not offered; choose one of {names}")
    return allocate(num_blocks, block_size, num_kv_heads, head_dim, dtype, device)


def kv_write(cache: KVCache, key: Tensor, value: Tensor, slot_mapping: Tensor) -> None:
    """Rows of `key` beyond `slot_mapping` (padding of a captured graph) are not read."""
    rows, shape = slot_mapping.shape[0], (cache.num_kv_heads, cache.head_dim)
    for name, x in (("key", key), ("value", value)):
        if x.shape[0] < rows or tuple(x.shape[1:]) != shape:
            raise KernelError(f"kv_write: {name} {tuple(x.shape)}, expected {(rows, *shape)}")
    key, value = (x if x.flatten(1).stride(1) == 1 and x[0].is_contiguous() else x.contiguous() for x in (key, value))
    float8 = cache.key.dtype is torch.float8_e4m3fn
    width = shape[0] * shape[1]
    strides = (cache.key.stride(0), cache.key.stride(1))
    constants, schedule = write_constants(key.stride(0), value.stride(0), strides, cache.block_size, width, float8)
    pieces = triton.cdiv(width, int(constants["BLOCK"] or 1))
    launch(
        write_rows,
        (rows, pieces),
        {
            "key": key,
            "value": value,
            "key_cache": as_bytes(cache.key),
            "value_cache": as_bytes(cache.value),
            "slots": slot_mapping,
            "key_inverse": 1.0 / cache.key_scale,
            "value_inverse": 1.0 / cache.value_scale,
        },
        constants,
        schedule,
    )


def read_kv(cache: KVCache, slots: Tensor) -> tuple[Tensor, Tensor]:
    return read(cache, slots)


def as_bytes(storage: Tensor) -> Tensor:
    """float8 as the bytes that the kernels decode; other dtypes as they are."""
    return storage.view(torch.uint8) if storage.dtype is torch.float8_e4m3fn else storage
