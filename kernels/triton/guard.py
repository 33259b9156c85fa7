"""Counts kernels that are compiled while a model serves: they should have been compiled ahead.

Triton calls its one listener for each variant that a process sees first, and says whether the cache had it; launches
that it knows pay nothing.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import triton

from kernels.contracts import KernelError

logger = logging.getLogger(__name__)


class LateCompiles:
    """`refuse` raises KernelError instead of counting, for tests. Safe to read from any thread."""

    def __init__(self, *, refuse: bool = False) -> None:
        self._refuse, self._lock = refuse, threading.Lock()
        self.count = 0

    def watch(self) -> None:
        """From now on, until another watch begins."""
        triton.knobs.compilation.listener = self._seen

    def _seen(self, *, src: Any, cache_hit: bool, **_: Any) -> None:
        if cache_hit:
            return
        with self._lock:
            self.count += 1
        name = getattr(src, "name", "a kernel")
        if self._refuse:
            raise KernelError(f"{name} was compiled while serving: it is not in the manifest")
        logger.warning("kernel %s was compiled while serving; build the manifest of this model again", name)
