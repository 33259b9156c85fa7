from __future__ import annotations

import pytest

from engine.kv_cache.block_pool import BlockPool


def test_blocks_are_handed_out_least_recently_freed_first() -> None:
    pool = BlockPool(4)
    first = pool.allocate(4)
    pool.release([first[2]])
    pool.release([first[0]])
    assert pool.allocate(2) == [first[2], first[0]]


def test_the_tail_of_a_released_table_is_reused_before_its_head() -> None:
    pool = BlockPool(3)
    table = pool.allocate(3)
    pool.release(table)
    assert pool.free_order() == table[::-1]


def test_a_retained_free_block_leaves_the_middle_of_the_free_list() -> None:
    pool = BlockPool(5)
    pool.retain([2])
    assert pool.free_order() == [0, 1, 3, 4]
    assert (pool.num_free, pool.references(2)) == (4, 1)


def test_a_shared_block_is_free_only_after_its_last_holder() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.retain([block])
    pool.release([block])
    assert not pool.is_free(block)
    pool.release([block])
    assert pool.is_free(block)


def test_reuse_is_announced_when_a_block_is_handed_out_and_not_when_it_is_freed() -> None:
    reused: list[int] = []
    pool = BlockPool(2, on_reuse=reused.append)
    table = pool.allocate(2)
    reused.clear()
    pool.release(table)
    assert reused == []
    pool.allocate(1)
    assert reused == [table[1]]


def test_taking_more_than_is_free_changes_nothing() -> None:
    pool = BlockPool(2)
    with pytest.raises(RuntimeError, match="asked for 3"):
        pool.allocate(3)
    pool.check_integrity([])


def test_releasing_twice_is_an_error() -> None:
    pool = BlockPool(1)
    table = pool.allocate(1)
    pool.release(table)
    with pytest.raises(RuntimeError, match="more often than held"):
        pool.release(table)


def test_integrity_finds_a_lost_reference() -> None:
    pool = BlockPool(3)
    table = pool.allocate(2)
    pool.check_integrity([table])
    with pytest.raises(RuntimeError, match="differ from the block tables"):
        pool.check_integrity([table[:1]])


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0)
