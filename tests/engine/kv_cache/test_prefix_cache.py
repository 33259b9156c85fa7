from __future__ import annotations

from engine.kv_cache.manager import KVManager
from engine.kv_cache.prefix_cache import PrefixCache, block_key, extend_keys, root_key
from engine.sequence import Kind, Sequence
from tests.fakes.engines import sequence


def computed(kv: KVManager, item: Sequence) -> Sequence:
    """Admit, compute all known tokens, publish."""
    kv.admit(item, kv.lookup(item))
    assert kv.extend(item, item.num_tokens)
    item.num_computed = item.num_tokens
    kv.commit(item)
    return item


def test_an_adapter_can_never_equal_a_salt() -> None:
    assert root_key(b"x", None) != root_key(None, "x")
    assert root_key(b"a", "b") != root_key(b"ab", None)
    assert root_key(None, None) != root_key(b"", None)


def test_the_key_of_a_block_depends_on_all_tokens_before_it() -> None:
    keys: list[bytes] = []
    extend_keys(keys, root_key(None, None), [1, 2, 3, 4], 2, 2)
    other: list[bytes] = []
    extend_keys(other, root_key(None, None), [9, 2, 3, 4], 2, 2)
    assert keys[1] != other[1]


def test_a_hash_collision_is_a_miss() -> None:
    cache, root = PrefixCache(2), root_key(None, None)
    key = block_key(root, [1, 2])
    cache.insert(0, key, root, [1, 2])
    assert cache.match([key], root, [1, 2]) == [0]
    assert cache.match([key], root, [3, 4]) == []


def test_a_match_ends_where_the_chain_is_broken() -> None:
    cache, root = PrefixCache(1), root_key(None, None)
    keys: list[bytes] = []
    extend_keys(keys, root, [1, 2, 3], 1, 3)
    for block, key in enumerate(keys):
        cache.insert(block, key, keys[block - 1] if block else root, [block + 1])
    cache.forget(1)
    assert cache.match(keys, root, [1, 2, 3]) == [0]


def test_the_first_block_with_a_content_keeps_its_key() -> None:
    cache, root = PrefixCache(1), root_key(None, None)
    key = block_key(root, [1])
    cache.insert(0, key, root, [1])
    cache.insert(1, key, root, [1])
    cache.forget(1)
    assert cache.match([key], root, [1]) == [0]
    cache.check_integrity()


def test_prompts_around_the_block_edge_recompute_at_least_one_token() -> None:
    for length, cached in ((8, 4), (9, 8), (7, 4), (12, 8), (4, 0), (1, 0)):
        kv = KVManager(16, 4)
        prompt = list(range(length))
        kv.release(computed(kv, sequence(prompt)))
        assert len(kv.lookup(sequence(prompt))) * 4 == cached, length


def test_two_salts_never_share_a_block() -> None:
    kv = KVManager(16, 4)
    prompt = list(range(9))
    computed(kv, sequence(prompt, salt=b"tenant-a"))
    assert kv.lookup(sequence(prompt, salt=b"tenant-b")) == []
    assert kv.lookup(sequence(prompt)) == []
    assert len(kv.lookup(sequence(prompt, salt=b"tenant-a"))) == 2


def test_a_sequence_cannot_evict_the_prefix_it_hits() -> None:
    kv = KVManager(4, 4)
    kv.release(computed(kv, sequence(list(range(9)))))
    again = sequence([*range(8), 50, 51, 52, 53, 54, 55])
    hits = kv.lookup(again)
    assert kv.fits(again, hits, 0)
    kv.admit(again, hits)
    assert kv.extend(again, again.num_tokens)
    assert again.block_table[:2] == hits
    kv.check_integrity([again])


def test_idle_hits_count_as_blocks_that_are_needed() -> None:
    kv = KVManager(3, 4)
    kv.release(computed(kv, sequence(list(range(8)))))
    longer = sequence([*range(8), *range(100, 105)])
    assert not kv.fits(longer, kv.lookup(longer), 0)


def test_cached_blocks_survive_until_they_are_handed_out_again() -> None:
    kv = KVManager(4, 4)
    prompt = list(range(8))
    kv.release(computed(kv, sequence(prompt)))
    kv.release(computed(kv, sequence(list(range(100, 108)))))
    assert len(kv.lookup(sequence([*prompt, 1]))) == 2
    kv.release(computed(kv, sequence(list(range(200, 212)))))
    assert len(kv.lookup(sequence([*prompt, 1]))) < 2


def test_prompt_logprobs_and_embeddings_read_no_cached_block() -> None:
    kv = KVManager(16, 4)
    prompt = list(range(9))
    computed(kv, sequence(prompt))
    assert kv.lookup(sequence(prompt, want_prompt_logprobs=True)) == []


def test_an_embedding_leaves_nothing_in_the_cache() -> None:
    kv = KVManager(16, 4)
    prompt = list(range(9))
    computed(kv, sequence(prompt, kind=Kind.EMBED))
    assert kv.lookup(sequence(prompt)) == []


def test_a_disabled_cache_keeps_nothing() -> None:
    kv = KVManager(16, 4, enable_prefix_caching=False)
    prompt = list(range(9))
    computed(kv, sequence(prompt))
    assert kv.lookup(sequence(prompt)) == []


def test_the_waste_is_the_empty_part_of_last_blocks() -> None:
    kv = KVManager(16, 4)
    items = [computed(kv, sequence(5)), computed(kv, sequence(8))]
    usage = kv.snapshot(items)
    assert (usage.allocated_slots, usage.used_slots) == (16, 13)
    assert usage.waste == 3 / 16
