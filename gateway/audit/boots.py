"""Folders of boots in the spool: make ours, find those whose process is dead, take them over, remove them.

`spool/<node>/<boot>/` holds the segments, the checkpoint and a lock that the living process keeps. Knows no records.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

LOCK = "lock"
KEY_FILE = "commitment.key"


@dataclass(frozen=True, slots=True)
class Boot:
    """A boot's folder with its lock held by us. `release` gives the lock back."""

    folder: Path
    boot_id: UUID
    _lock: int

    def release(self) -> None:
        os.close(self._lock)

    def remove(self) -> None:
        """Delete the folder: everything in it is in Postgres."""
        shutil.rmtree(self.folder, ignore_errors=True)


def create_boot(spool_dir: Path, node_id: str, boot_id: UUID) -> Boot:
    """Raises `OSError` when the spool folder cannot be written."""
    # A host name is data: only its harmless characters may become part of a path.
    node = re.sub(r"[^A-Za-z0-9_.-]", "_", node_id)[:100].lstrip(".") or "node"
    folder = spool_dir / node / str(boot_id)
    folder.mkdir(parents=True, mode=0o700)
    boot = _take(folder, boot_id)
    if boot is None:
        raise OSError("a new spool folder is locked by another process")
    return boot


def dead_boots(spool_dir: Path, own: UUID) -> Iterator[Boot]:
    """Folders of processes that are gone, oldest first, each locked so that one process alone takes it over."""
    for folder in sorted(spool_dir.glob("*/*"), key=lambda path: path.name):
        with contextlib.suppress(ValueError):
            boot_id = UUID(folder.name)
            if boot_id != own:
                boot = _take(folder, boot_id)
                if boot is not None:
                    yield boot


def commitment_key(spool_dir: Path, configured: bytes | None) -> bytes:
    """The configured key, else one that is made on first use and kept beside the spool."""
    if configured is not None:
        return configured
    path = spool_dir / KEY_FILE
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    spool_dir.mkdir(parents=True, mode=0o700, exist_ok=True)
    partial = spool_dir / f"{KEY_FILE}.{os.getpid()}"
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_bytes(32))
        file.flush()
        os.fsync(file.fileno())
    # The first of several starting processes wins; the others read its key.
    with contextlib.suppress(FileExistsError):
        os.link(partial, path)
    partial.unlink()
    return path.read_bytes()


def _take(folder: Path, boot_id: UUID) -> Boot | None:
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return Boot(folder, boot_id, lock)
