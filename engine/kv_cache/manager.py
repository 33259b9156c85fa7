"""Gives sequences their blocks: prefix lookup, admission, growth, publication, release. Decides no order.

Rules: at least one token is always recomputed; hits are retained before new blocks are taken; a block is published only
when all its tokens are computed; a table only grows at its end and has exactly ceil(tokens / block_size) entries.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.kv_cache.block_lifetimes import BlockWatch
from engine.kv_cache.block_pool import BlockPool
from engine.kv_cache.prefix_cache import PrefixCache, extend_keys, root_key
from engine.sequence import Kind, Sequence


@dataclass(frozen=True, slots=True)
class KVUsage:
    """A snapshot. `allocated_slots` are token slots of held blocks, each once; `used_slots` those with a token."""

    num_blocks: int
    free_blocks: int
    cached_blocks: int
    allocated_slots: int
    used_slots: int

    @property
    def usage(self) -> float:
        return 1.0 - self.free_blocks / self.num_blocks

    @property
    def waste(self) -> float:
        return 1.0 - self.used_slots / self.allocated_slots if self.allocated_slots else 0.0


class KVManager:
    def __init__(
        self, num_blocks: int, block_size: int, enable_prefix_caching: bool = True, watch: BlockWatch | None = None
    ) -> None:
        self.block_size = block_size
        self.caching = enable_prefix_caching
        self._cache = PrefixCache(block_size)
        self.watch = watch or BlockWatch()
        self.watch.begin()
        self.pool = BlockPool(num_blocks, on_reuse=self._reused)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def lookup(self, sequence: Sequence) -> list[int]:
        """Cached blocks of the longest known prefix, never all of it: at least one token stays to be computed."""
        if not self.caching or not sequence.reads_cache:
            return []
        full = (sequence.num_tokens - 1) // self.block_size
        root = root_key(sequence.salt, sequence.adapter)
        extend_keys(sequence.block_keys, root, sequence.token_ids, self.block_size, full)
        return self._cache.match(sequence.block_keys[:full], root, sequence.token_ids)

    def next_key(self, sequence: Sequence, num_blocks: int) -> bytes | None:
        """Key of the first full block after `num_blocks` computed ones, if it is known and not the last token's."""
        if self.caching and num_blocks < min(len(sequence.block_keys), (sequence.num_tokens - 1) // self.block_size):
            return sequence.block_keys[num_blocks]
        return None

    def fits(self, sequence: Sequence, hits: list[int], promised: int) -> bool:
        """Whether every known token of `sequence` fits beside `promised` blocks that others still need."""
        idle_hits = sum(1 for block in hits if self.pool.is_free(block))
        need = self.blocks_for(sequence.num_tokens) - len(hits)
        return need + idle_hits + promised <= self.pool.num_free

    def admit(self, sequence: Sequence, hits: list[int]) -> None:
        """Start the table from cached blocks. Hits are retained first, lest the sequence evict its own prefix."""
        self.pool.retain(hits)
        for block in hits:
            self.watch.hit(block)
        sequence.block_table = list(hits)
        sequence.num_computed = len(hits) * self.block_size
        sequence.num_registered = len(hits)

    def extend(self, sequence: Sequence, num_tokens: int) -> bool:
        """Grow the table to hold `num_tokens` tokens; False (and nothing changed) when the pool is short."""
        missing = self.blocks_for(num_tokens) - len(sequence.block_table)
        if missing <= 0:
            return True
        if not self.pool.can_allocate(missing):
            return False
        sequence.block_table.extend(self.pool.allocate(missing))
        return True

    def commit(self, sequence: Sequence) -> None:
        """Publish the blocks that `num_computed` has filled, but not an embedding's. Amortized O(1) per token."""
        full = sequence.num_computed // self.block_size
        if not self.caching or full <= sequence.num_registered or sequence.kind is Kind.EMBED:
            return
        root = root_key(sequence.salt, sequence.adapter)
        keys, size = sequence.block_keys, self.block_size
        extend_keys(keys, root, sequence.token_ids, size, full)
        for index in range(sequence.num_registered, full):
            parent = keys[index - 1] if index else root
            tokens = sequence.token_ids[index * size : (index + 1) * size]
            self._cache.insert(sequence.block_table[index], keys[index], parent, tokens)
        sequence.num_registered = full

    def release(self, sequence: Sequence) -> None:
        """Idempotent. Published blocks stay valid until they are handed out again."""
        table, sequence.block_table = sequence.block_table, []
        sequence.num_computed = 0
        sequence.num_registered = 0
        self.pool.release(table)
        for block in table:
            self.watch.freed(block)

    def _reused(self, block: int) -> None:
        self.watch.handed_out(block, self._cache.forget(block))

    def invalidate(self, sequence: Sequence) -> None:
        """Forget what its blocks hold: a sequence that failed may have failed because of their content."""
        for block in sequence.block_table:
            self._cache.forget(block)

    def evict_cached(self) -> None:
        """Forget all cached content (weights changed, cache cleared by an operator); tables are not touched."""
        self._cache.clear()

    def snapshot(self, running: Iterable[Sequence]) -> KVUsage:
        """Slots are those of held blocks; a shared block counts once and is full by construction."""
        held = self.pool.num_blocks - self.pool.num_free
        unused = sum([len(s.block_table) * self.block_size - s.num_computed for s in running])
        return KVUsage(
            num_blocks=self.pool.num_blocks,
            free_blocks=self.pool.num_free,
            cached_blocks=len(self._cache),
            allocated_slots=held * self.block_size,
            used_slots=held * self.block_size - unused,
        )

    def check_integrity(self, running: Iterable[Sequence]) -> None:
        """Raise `RuntimeError` when an invariant of pool, cache or tables is broken."""
        tables = []
        for sequence in running:
            if len(sequence.block_table) < self.blocks_for(sequence.num_computed):
                raise RuntimeError(f"sequence {sequence.order} has fewer blocks than computed tokens")
            if len(sequence.block_table) > self.blocks_for(sequence.num_tokens):
                raise RuntimeError(f"sequence {sequence.order} holds blocks beyond its tokens")
            tables.append(sequence.block_table)
        self.pool.check_integrity(tables)
        self._cache.check_integrity()
