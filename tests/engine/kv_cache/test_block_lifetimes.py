from __future__ import annotations

from engine.kv_cache.block_lifetimes import SAMPLE_EVERY, BlockWatch
from engine.kv_cache.manager import KVManager
from tests.fakes.engines import sequence


def test_lifetime_idle_time_and_reuse_gap_of_a_cached_block_are_observed() -> None:
    watch = BlockWatch()
    kv = KVManager(2, 4, watch=watch)
    for moment, prompt in ((0.0, range(5)), (10.0, range(5)), (100.0, range(50, 58))):
        watch.now = moment
        item = sequence(list(prompt))
        kv.admit(item, kv.lookup(item))
        kv.extend(item, item.num_tokens)
        item.num_computed = item.num_tokens
        kv.commit(item)
        watch.now += 2.0
        kv.release(item)
    assert watch.reuse_gap.snapshot().total == 8.0
    assert watch.lifetime.snapshot().total == 100.0
    assert watch.idle_before_evict.snapshot().total == 88.0


def test_only_a_sample_of_the_blocks_is_watched() -> None:
    watch = BlockWatch()
    for block in range(1, SAMPLE_EVERY):
        watch.handed_out(block, True)
        watch.now += 1.0
        watch.handed_out(block, True)
    assert sum(watch.lifetime.snapshot().counts) == 0


def test_a_block_whose_content_was_not_cached_is_not_an_eviction() -> None:
    watch = BlockWatch()
    watch.handed_out(0, False)
    watch.now = 5.0
    watch.handed_out(0, False)
    assert sum(watch.lifetime.snapshot().counts) == 0
