"""Paged attention and the cache below it: ragged batches, every group size, windows, softcap, block edges, NaN."""

from __future__ import annotations

import pytest
import torch

from kernels.contracts import KernelError, Ops
from tests.kernels.conftest import TOLERANCES, Batch, assert_near

DTYPES = list(TOLERANCES)
RAGGED = ([1, 7, 1, 33, 1, 16], [1, 7, 100, 65, 16, 48])
"""(query lengths, kv lengths): decodes, whole prompts and chunks on and around block edges."""


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_group_size(cpu: Ops, reference: Ops, group: int, dtype: torch.dtype) -> None:
    batch = Batch(*RAGGED, heads=2 * group, kv_heads=2, dim=64, dtype=dtype)
    assert_near(batch.attend(cpu), batch.attend(reference))


@pytest.mark.parametrize("dim", [8, 24, 80, 96, 128, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_head_dimension(cpu: Ops, reference: Ops, dim: int, dtype: torch.dtype) -> None:
    batch = Batch(*RAGGED, heads=3, kv_heads=1, dim=dim, dtype=dtype)
    assert_near(batch.attend(cpu), batch.attend(reference))


@pytest.mark.parametrize("block_size", [1, 4, 8, 16, 24, 32, 128])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_block_size(cpu: Ops, reference: Ops, block_size: int, dtype: torch.dtype) -> None:
    batch = Batch(*RAGGED, heads=6, kv_heads=2, dim=32, block_size=block_size, dtype=dtype)
    assert_near(batch.attend(cpu), batch.attend(reference))


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 64, 1000])
@pytest.mark.parametrize("block_size", [4, 16])
def test_sliding_windows(cpu: Ops, reference: Ops, window: int, block_size: int) -> None:
    batch = Batch(*RAGGED, heads=6, kv_heads=2, dim=32, block_size=block_size)
    assert_near(batch.attend(cpu, window=window), batch.attend(reference, window=window))


@pytest.mark.parametrize("softcap", [0.5, 30.0])
def test_softcap_bounds_the_scores(cpu: Ops, reference: Ops, softcap: float) -> None:
    batch = Batch(*RAGGED, heads=6, kv_heads=2, dim=32)
    assert_near(batch.attend(cpu, 3.0, softcap=softcap), batch.attend(reference, 3.0, softcap=softcap))


def test_one_long_decode_is_split_and_merged(cpu: Ops, reference: Ops) -> None:
    batch = Batch([1], [1777], heads=3, kv_heads=1, dim=64)
    plan = batch.plan(cpu)
    got = cpu.paged_attention(batch.q, batch.cache(cpu), plan, 0.2)
    assert_near(got, batch.attend(reference))


def test_large_scores_do_not_overflow(cpu: Ops, reference: Ops) -> None:
    batch = Batch([1, 20], [90, 20], heads=2, kv_heads=2, dim=64)
    assert_near(batch.attend(cpu, 40.0), batch.attend(reference, 40.0))


def test_blocks_left_behind_by_the_window_are_never_read(cpu: Ops, reference: Ops) -> None:
    batch = Batch([1, 5], [200, 133], heads=6, kv_heads=2, dim=32)
    expected = batch.attend(reference, window=40)
    cache = batch.cache(cpu)
    for sequence, oldest in ((0, 160), (1, 89)):
        gone = batch.tables[sequence, : oldest // 16].long()
        cache.key[gone], cache.value[gone] = float("nan"), float("nan")
        batch.tables[sequence, : oldest // 16] = -1
    got = cpu.paged_attention(batch.q, cache, batch.plan(cpu, window=40), 0.2, window=40)
    assert_near(got, expected)


def test_a_plan_whose_blocks_are_gone_refuses_a_wider_view(cpu: Ops) -> None:
    batch = Batch([1], [200], heads=6, kv_heads=2, dim=32)
    cache = batch.cache(cpu)
    batch.tables[0, :2] = -1
    plan = batch.plan(cpu, window=40)
    with pytest.raises(KernelError, match="sees further"):
        cpu.paged_attention(batch.q, cache, plan, 0.2)


@pytest.mark.parametrize(
    ("starts", "lengths", "table", "message"),
    [
        ([0, 2], [1], [[0]], "kv_len"),
        ([1, 2], [4], [[0]], "query_start"),
        ([0, 1], [17], [[0]], "kv_len"),
        ([0, 1], [4], [[-1]], "negative block"),
    ],
)
def test_impossible_plans_are_refused(
    cpu: Ops, starts: list[int], lengths: list[int], table: list[list[int]], message: str
) -> None:
    first, second, blocks = (torch.tensor(x, dtype=torch.int32) for x in (starts, lengths, table))
    with pytest.raises(KernelError, match=message):
        cpu.plan_attention(first, second, blocks, 16, 2, 1, 16)


def test_a_block_outside_the_cache_is_refused(cpu: Ops) -> None:
    batch = Batch([1], [20], heads=2, kv_heads=1, dim=16)
    cache = batch.cache(cpu)
    batch.tables[0, 1] = batch.num_blocks
    with pytest.raises(KernelError, match="does not have"):
        cpu.paged_attention(batch.q, cache, batch.plan(cpu), 0.2)


def test_an_empty_sequence_beside_a_full_one_has_no_rows(cpu: Ops, reference: Ops) -> None:
    batch = Batch([0, 3], [5, 3], heads=2, kv_heads=1, dim=16)
    assert_near(batch.attend(cpu), batch.attend(reference))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
@pytest.mark.parametrize(("block_size", "dim"), [(16, 64), (5, 24), (128, 80)])
def test_what_is_written_is_read_back(cpu: Ops, dtype: torch.dtype, block_size: int, dim: int) -> None:
    cache = cpu.allocate_kv_cache(7, block_size, 3, dim, dtype, "cpu")
    slots = torch.randperm(7 * block_size)[:29]
    key, value = torch.randn(29, 3, dim).to(dtype), torch.randn(29, 3, dim).to(dtype)
    cpu.kv_write(cache, key, value, slots)
    got_key, got_value = cpu.read_kv(cache, slots)
    assert torch.equal(got_key.to(dtype), key)
    assert torch.equal(got_value.to(dtype), value)


def test_slot_minus_one_is_skipped(cpu: Ops) -> None:
    cache = cpu.allocate_kv_cache(1, 16, 1, 8, torch.float32, "cpu")
    cache.key.zero_()
    cache.value.zero_()
    cpu.kv_write(cache, torch.ones(2, 1, 8), torch.ones(2, 1, 8), torch.tensor([-1, 3]))
    assert float(cache.key.sum()) == 8


def test_a_slot_outside_the_cache_is_refused(cpu: Ops) -> None:
    cache = cpu.allocate_kv_cache(2, 16, 1, 8, torch.float32, "cpu")
    with pytest.raises(KernelError, match=r"span \[32, 32\], the cache has 2 blocks of 16"):
        cpu.kv_write(cache, torch.ones(1, 1, 8), torch.ones(1, 1, 8), torch.tensor([32]))
