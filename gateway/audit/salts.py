"""The salts of commitments, 16 random bytes each, taken from the kernel in blocks.

A system call for each would release the interpreter's lock, and getting that back from the spool's thread costs a
request more than all of its hashing. From one process only: nothing forks after the first draw.
"""

from __future__ import annotations

import os
import threading

SALT_BYTES = 16
BLOCK = 256


class Salts:
    """Thread-safe; no two draws overlap."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._block, self._at = b"", 0

    def draw(self) -> bytes:
        with self._lock:
            if self._at >= len(self._block):
                self._block, self._at = os.urandom(SALT_BYTES * BLOCK), 0
            start = self._at
            self._at = start + SALT_BYTES
            return self._block[start : self._at]


SALTS = Salts()
"""Of this process; empty until the first draw."""
