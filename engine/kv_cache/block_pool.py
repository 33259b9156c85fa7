"""Physical KV blocks: reference counts and an intrusive LRU free list. Knows no tokens, sequences or hashes.

Ownership: every block is either held (reference count = number of block tables that name it) or on the free list.
A block keeps its content while it is free; `on_reuse` tells the prefix cache when the content is about to be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

_HELD = -2
_END = -1


class BlockPool:
    """`num_blocks` blocks with ids 0..num_blocks-1, all free at first, handed out least recently freed first.

    The free list is doubly linked through two int lists, so that a cached block in its middle is taken out in O(1).
    """

    def __init__(self, num_blocks: int, on_reuse: Callable[[int], None] | None = None) -> None:
        if num_blocks < 1:
            raise ValueError(f"`num_blocks` is {num_blocks}; the pool needs at least one block")
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self._on_reuse = on_reuse
        self._refs = [0] * num_blocks
        self._next = [*range(1, num_blocks), _END]
        self._prev = [_END, *range(num_blocks - 1)]
        self._head = 0
        self._tail = num_blocks - 1

    def is_free(self, block: int) -> bool:
        return self._refs[block] == 0

    def references(self, block: int) -> int:
        return self._refs[block]

    def can_allocate(self, count: int) -> bool:
        return count <= self.num_free

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks, each with one reference. Raises `RuntimeError` when fewer are free."""
        if count > self.num_free:
            raise RuntimeError(f"asked for {count} blocks, {self.num_free} are free")
        taken = []
        for _ in range(count):
            block = self._head
            self._unlink(block)
            self._refs[block] = 1
            if self._on_reuse is not None:
                self._on_reuse(block)
            taken.append(block)
        return taken

    def retain(self, blocks: Iterable[int]) -> None:
        """One more reference each; a free (cached) block leaves the free list with its content."""
        for block in blocks:
            if self._refs[block] == 0:
                self._unlink(block)
            self._refs[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One reference less each, last block first: the tail of a sequence is the least shareable and dies first."""
        for block in reversed(blocks):
            if self._refs[block] < 1:
                raise RuntimeError(f"block {block} was released more often than held")
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._append(block)

    def _unlink(self, block: int) -> None:
        before, after = self._prev[block], self._next[block]
        if before == _END:
            self._head = after
        else:
            self._next[before] = after
        if after == _END:
            self._tail = before
        else:
            self._prev[after] = before
        self._next[block] = self._prev[block] = _HELD
        self.num_free -= 1

    def _append(self, block: int) -> None:
        self._prev[block], self._next[block] = self._tail, _END
        if self._tail == _END:
            self._head = block
        else:
            self._next[self._tail] = block
        self._tail = block
        self.num_free += 1

    def free_order(self) -> list[int]:
        """Free blocks in the order in which they would be handed out."""
        order: list[int] = []
        block = self._head
        while block != _END and len(order) <= self.num_blocks:
            order.append(block)
            block = self._next[block]
        return order

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise `RuntimeError` unless references equal table entries and free + held = total. O(blocks)."""
        held = [0] * self.num_blocks
        for table in tables:
            if len(set(table)) != len(table):
                raise RuntimeError("a block table names a block twice")
            for block in table:
                held[block] += 1
        if held != self._refs:
            wrong = [b for b in range(self.num_blocks) if held[b] != self._refs[b]]
            raise RuntimeError(f"reference counts differ from the block tables at blocks {wrong[:8]}")
        order = self.free_order()
        if len(order) != self.num_free or len(set(order)) != len(order):
            raise RuntimeError("the free list is broken")
        if any(self._refs[block] for block in order):
            raise RuntimeError("a held block is on the free list")
        if self.num_free + sum(1 for refs in self._refs if refs) != self.num_blocks:
            raise RuntimeError("free and held blocks do not add up to the pool")
