"""Attention over paged caches in Triton, beside the reference: ragged batches over shuffled pools full of NaN."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.contracts import KernelError, KVCache, Ops
from kernels.triton.paged_attention import SEGMENTS, attention_constants, shape_of_step
from tests.kernels.conftest import Batch, assert_near

RAGGED = ([1, 5, 0, 3], [1, 37, 4, 3])
DECODES = ([1, 1, 1], [1, 33, 70])


@pytest.mark.parametrize("lengths", [RAGGED, DECODES, ([20], [20]), ([19], [50])])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (6, 2), (7, 1), (8, 1), (5, 1)])
def test_ragged_batches(
    triton_ops: Ops, reference: Ops, lengths: tuple[list[int], list[int]], heads: int, kv_heads: int
) -> None:
    batch = Batch(*lengths, heads, kv_heads, 32)
    assert_near(batch.attend(triton_ops), batch.attend(reference))


@pytest.mark.parametrize("dim", [16, 64, 80, 96, 128])
@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_widths_of_heads_and_blocks(triton_ops: Ops, reference: Ops, dim: int, block_size: int) -> None:
    batch = Batch([1, 4], [70, 9], 4, 2, dim, block_size)
    assert_near(batch.attend(triton_ops), batch.attend(reference))


@pytest.mark.parametrize("window", [1, 5, 16, 40, 70, 1000])
@pytest.mark.parametrize("lengths", [([1, 9], [70, 70]), ([40], [40])])
def test_windows(triton_ops: Ops, reference: Ops, lengths: tuple[list[int], list[int]], window: int) -> None:
    batch = Batch(*lengths, 4, 2, 32)
    assert_near(batch.attend(triton_ops, window=window), batch.attend(reference, window=window))


def test_scores_are_capped_without_overflow(triton_ops: Ops, reference: Ops) -> None:
    batch = Batch([1, 9], [40, 9], 4, 2, 32)
    for scale in (0.2, 1e4):
        assert_near(batch.attend(triton_ops, scale, softcap=50.0), batch.attend(reference, scale, softcap=50.0))


@pytest.mark.parametrize("lengths", [RAGGED, DECODES, ([30], [30])])
def test_sinks_take_part_in_the_sum_alone(
    triton_ops: Ops, reference: Ops, lengths: tuple[list[int], list[int]]
) -> None:
    batch, sinks = Batch(*lengths, 6, 2, 32), torch.randn(6) * 3
    results = [
        ops.paged_attention(batch.q, batch.cache(ops), batch.plan(ops), 0.2, sinks=sinks)
        for ops in (triton_ops, reference)
    ]
    assert_near(results[0], results[1])
    assert not torch.allclose(results[0], batch.attend(triton_ops))


@pytest.mark.parametrize("length", [1, 31, 32, 33, 32 * SEGMENTS - 1, 32 * SEGMENTS, 32 * SEGMENTS + 1])
def test_split_keys_give_what_whole_ones_give(triton_ops: Ops, reference: Ops, length: int) -> None:
    batch = Batch([1], [length], 4, 2, 16)
    plan = batch.plan(triton_ops)
    cache = batch.cache(triton_ops)
    assert attention_constants(shape_of_step(batch.q, cache, plan, None, None))[0]["SPLITS"] == SEGMENTS
    split = triton_ops.paged_attention(batch.q, cache, plan, 0.2)
    whole = triton_ops.paged_attention(batch.q, cache, replace(plan, deterministic=True), 0.2)
    torch.testing.assert_close(split, whole, atol=1e-6, rtol=1e-6)
    assert_near(split, batch.attend(reference))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lengths", [RAGGED, ([40], [60])])
def test_half_precision(
    triton_ops: Ops, reference: Ops, lengths: tuple[list[int], list[int]], dtype: torch.dtype
) -> None:
    batch = Batch(*lengths, 4, 2, 64, dtype=dtype)
    torch.testing.assert_close(batch.attend(triton_ops), batch.attend(reference), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("lengths", [RAGGED, DECODES, ([40], [60])])
def test_float8_caches(triton_ops: Ops, reference: Ops, lengths: tuple[list[int], list[int]]) -> None:
    batch = Batch(*lengths, 4, 2, 32)
    results = []
    for ops in (triton_ops, reference):
        cache = ops.allocate_kv_cache(batch.num_blocks, 16, 2, 32, torch.float8_e4m3fn, "cpu")
        cache.key.view(torch.uint8).fill_(0x7F)
        cache.value.view(torch.uint8).fill_(0x7F)
        cache.key_scale, cache.value_scale = 0.02, 0.01
        for sequence, (key, value) in enumerate(zip(batch.keys, batch.values, strict=True)):
            ops.kv_write(cache, key, value, batch.slots(sequence))
        results.append(ops.paged_attention(batch.q, cache, batch.plan(ops), 0.2))
    assert_near(results[0], results[1])


def test_a_sequence_without_keys_gives_zeros(triton_ops: Ops, reference: Ops) -> None:
    """Rows that pad a captured graph."""
    batch = Batch([1, 1], [20, 16], 4, 2, 32)
    for ops in (triton_ops, reference):
        plan = batch.plan(ops)
        plan.kv_len[1] = 0
        out = ops.paged_attention(batch.q, batch.cache(ops), plan, 0.2)
        assert not out[1].any()
        assert_near(out[0], batch.attend(reference)[0])


def test_entries_past_the_length_are_not_followed(triton_ops: Ops, reference: Ops) -> None:
    batch = Batch([1, 3], [20, 3], 4, 2, 32)
    expected = batch.attend(reference)
    for row, used in ((0, 2), (1, 1)):
        batch.tables[row, used:] = 2**30
    plan, cache = batch.plan(triton_ops), batch.cache(triton_ops)
    assert_near(triton_ops.paged_attention(batch.q, cache, plan, 0.2), expected)


def test_offsets_beyond_32_bits_are_reached(triton_ops: Ops, reference: Ops) -> None:
    """Block 1 begins 2^31 numbers after block 0, in memory that is reserved and mostly never touched."""
    far = 2**31
    batch = Batch([1], [12], 2, 1, 16)
    batch.tables[0, 0] = 1
    results = []
    for ops in (triton_ops, reference):
        storages = [
            torch.empty(far + 256, dtype=torch.uint8).as_strided((2, 16, 1, 16), (far, 16, 16, 1)) for _ in range(2)
        ]
        key, value = (storage.view(torch.float8_e4m3fn) for storage in storages)
        cache = KVCache(key, value, 2, 16, 1, 16, key_scale=0.02, value_scale=0.02)
        if ops is triton_ops:
            ops.kv_write(cache, batch.keys[0], batch.values[0], batch.slots(0))
        else:
            cache = ops.allocate_kv_cache(2, 16, 1, 16, torch.float8_e4m3fn, "cpu")
            cache.key_scale = cache.value_scale = 0.02
            ops.kv_write(cache, batch.keys[0], batch.values[0], batch.slots(0))
        results.append(ops.paged_attention(batch.q, cache, batch.plan(ops), 0.2))
    assert_near(results[0], results[1])


def test_a_row_depends_on_itself_alone_when_deterministic(triton_ops: Ops) -> None:
    batch = Batch([6, 1], [40, 20], 4, 2, 32)
    cache, plan = batch.cache(triton_ops), batch.plan(triton_ops)
    whole = triton_ops.paged_attention(batch.q, cache, replace(plan, deterministic=True), 0.2)
    for row in range(6):
        alone = replace(
            plan,
            query_start=torch.tensor([0, 1], dtype=torch.int32),
            kv_len=torch.tensor([35 + row], dtype=torch.int32),
            block_tables=plan.block_tables[:1],
            deterministic=True,
        )
        found = triton_ops.paged_attention(batch.q[row : row + 1].clone(), cache, alone, 0.2)[0]
        # The interpreter multiplies with BLAS, whose last bit depends on the place of a row; a GPU's does not.
        torch.testing.assert_close(found, whole[row], atol=0 if found.is_cuda else 1e-6, rtol=0)


def test_no_rows_give_no_rows(triton_ops: Ops) -> None:
    batch = Batch([0], [4], 4, 2, 32)
    assert batch.attend(triton_ops).shape == (0, 4, 32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_writes_skip_rows_without_a_slot_and_touch_no_other(
    triton_ops: Ops, reference: Ops, dtype: torch.dtype
) -> None:
    caches = [ops.allocate_kv_cache(3, 16, 2, 40, dtype, "cpu") for ops in (triton_ops, reference)]
    key, value = torch.randn(4, 2, 40), torch.randn(4, 2, 40) * 300
    value[0, 0, :4] = torch.tensor([448.0, 465.0, 1e6, -1e9])
    key[0, 0, :4] = torch.tensor([0.0, 2.0**-9, 2.0**-10, -3 * 2.0**-10])
    slots = torch.tensor([47, -1, 0, 17])
    for ops, cache in zip((triton_ops, reference), caches, strict=True):
        for storage in (cache.key, cache.value):
            storage.view(torch.uint8).fill_(0x11)
        ops.kv_write(cache, key, value, slots)
    for name in ("key", "value"):
        written, expected = (getattr(cache, name).view(torch.uint8) for cache in caches)
        assert torch.equal(written, expected)
    read = triton_ops.read_kv(caches[0], torch.tensor([47, 17]))
    assert torch.equal(read[0], reference.read_kv(caches[1], torch.tensor([47, 17]))[0])


def test_padding_rows_of_keys_are_not_read(triton_ops: Ops) -> None:
    cache = triton_ops.allocate_kv_cache(1, 16, 1, 16, torch.float32, "cpu")
    cache.key.zero_()
    triton_ops.kv_write(cache, torch.ones(5, 1, 16), torch.ones(5, 1, 16), torch.tensor([3, -1]))
    assert cache.key.sum() == 16


def test_dtypes_that_no_kernel_reads_are_refused(triton_ops: Ops) -> None:
    with pytest.raises(KernelError, match="float8_e5m2"):
        triton_ops.allocate_kv_cache(1, 16, 1, 16, torch.float8_e5m2, "cpu")
