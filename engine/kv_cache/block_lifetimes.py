"""Lifetime, idle time and reuse gap of cached blocks: three histograms over a sample of the pool's blocks.

Owns no blocks. Told by the KV manager when a block is filled anew, hit, or freed; `now` is set once per step.
"""

from __future__ import annotations

from engine.histogram import Histogram

SAMPLE_EVERY = 16
"""One block id in so many is watched: enough for a histogram, free for the step loop."""
SECONDS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0),
    *(10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0),
)


class BlockWatch:
    def __init__(self) -> None:
        self.now = 0.0
        self.lifetime = Histogram(SECONDS)
        self.idle_before_evict = Histogram(SECONDS)
        self.reuse_gap = Histogram(SECONDS)
        self._born: dict[int, float] = {}
        self._used: dict[int, float] = {}

    def begin(self) -> None:
        """A new pool: the old blocks are gone, what was observed stays."""
        self._born.clear()
        self._used.clear()

    def handed_out(self, block: int, was_cached: bool) -> None:
        """Its old content is lost, which counts as an eviction if it was cached; new content begins."""
        if block % SAMPLE_EVERY:
            return
        if was_cached and block in self._born:
            self.lifetime.observe(self.now - self._born[block])
            self.idle_before_evict.observe(self.now - self._used[block])
        self._born[block] = self._used[block] = self.now

    def hit(self, block: int) -> None:
        """A prefix hit on its content."""
        if block % SAMPLE_EVERY == 0 and block in self._used:
            self.reuse_gap.observe(self.now - self._used[block])
            self._used[block] = self.now

    def freed(self, block: int) -> None:
        if block % SAMPLE_EVERY == 0:
            self._used[block] = self.now
