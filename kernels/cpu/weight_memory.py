"""Memory for packed weights: slices of large chunks on large pages, so that streaming weights costs few page walks.

A chunk lives as long as any tensor cut from it. Small tensors share chunks; nothing is ever handed out twice.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from kernels.cpu.library import lib

CHUNK_BYTES = 64 << 20
ALIGNMENT = 64


class WeightMemory:
    """Cuts zeroed tensors from chunks. One per process is enough; safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunk: Tensor | None = None
        self._used = 0

    def zeros(self, count: int, dtype: torch.dtype) -> Tensor:
        """A zeroed one-dimensional tensor of `count` elements, aligned to a cache line."""
        needed = -(-count * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        if needed == 0:
            return torch.zeros(0, dtype=dtype)
        with self._lock:
            if self._chunk is None or self._used + needed > self._chunk.shape[0]:
                self._chunk = _chunk(max(needed, CHUNK_BYTES))
                self._used = 0
            piece = self._chunk[self._used : self._used + needed]
            self._used += needed
            if self._used == self._chunk.shape[0]:
                self._chunk = None
        return piece[: count * dtype.itemsize].view(dtype)


def _chunk(size: int) -> Tensor:
    """Zero pages of the system, none of them touched yet."""
    memory = torch.zeros(size + ALIGNMENT, dtype=torch.uint8)
    lib().esc_advise_large_pages(memory.data_ptr(), memory.nbytes)
    start = -memory.data_ptr() % ALIGNMENT
    return memory[start : start + size]
