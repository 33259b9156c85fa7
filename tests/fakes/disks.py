"""A disk that fails on demand, for the audit spool: refuses writes, fails to sync, or hangs."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from gateway.audit.segment import DiskFile


class FaultyDisk:
    """Give its `open` to a spool as `open_file`; change `write_error`, `sync_error` or `hang` while it runs."""

    def __init__(self) -> None:
        self.write_error: int | None = None
        self.sync_error: int | None = None
        self.open_error: int | None = None
        self.sync_failures_left: int | None = None
        """None: every sync fails while `sync_error` is set; else so many."""
        self.drops_unsynced = False
        """What a failed sync should have made durable reads as zeros from then on: the kernel dropped the pages."""
        self.release = threading.Event()
        self.release.set()
        self.opened: list[Path] = []
        self.syncs = 0

    def open(self, path: Path) -> _FaultyFile:
        if self.open_error is not None:
            raise OSError(self.open_error, os.strerror(self.open_error))
        self.opened.append(path)
        return _FaultyFile(path, self)

    def fill(self) -> None:
        self.write_error = self.open_error = errno.ENOSPC

    def break_sync(self, times: int | None = None) -> None:
        self.sync_error, self.sync_failures_left = errno.EIO, times

    def repair(self) -> None:
        self.write_error = self.sync_error = self.open_error = self.sync_failures_left = None


class _FaultyFile(DiskFile):
    def __init__(self, path: Path, disk: FaultyDisk) -> None:
        super().__init__(path)
        self._path, self._disk, self._synced = path, disk, 0

    def write(self, data: bytes) -> None:
        if self._disk.write_error is not None:
            # A full disk takes the first part of what it is given.
            super().write(data[: len(data) // 2])
            raise OSError(self._disk.write_error, os.strerror(self._disk.write_error))
        super().write(data)

    def write_durably(self, data: bytes) -> None:
        self.write(data)
        self.sync()

    def sync(self) -> None:
        self._disk.release.wait()
        self._disk.syncs += 1
        left = self._disk.sync_failures_left
        if self._disk.sync_error is not None and (left is None or left > 0):
            if left is not None:
                self._disk.sync_failures_left = left - 1
            if self._disk.drops_unsynced:
                data = self._path.read_bytes()
                self._path.write_bytes(data[: self._synced] + bytes(len(data) - self._synced))
            raise OSError(self._disk.sync_error, os.strerror(self._disk.sync_error))
        super().sync()
        self._synced = self.size()
