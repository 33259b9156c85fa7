"""Folders of boots in the spool: make ours, find those whose process is dead, take them over, remove them.

`spool/<node>/<boot>/` holds the segments, the checkpoint, the mark and a lock that the living process keeps. Knows no
records. Removes what it knows and nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from gateway.audit.boot_reader import CHECKPOINT
from gateway.audit.mark import NAME as MARK
from gateway.audit.quarantine import QUARANTINE
from gateway.audit.segment import segment_numbers, segment_path

LOCK = "lock"
KEY_FILE = "commitment.key"


@dataclass(slots=True)
class Boot:
    """A boot's folder with its lock held by us. `release` gives the lock back."""

    folder: Path
    boot_id: UUID
    _lock: int

    def release(self) -> None:
        os.close(self._lock)

    def remove(self) -> None:
        """Delete the folder: everything in it is in Postgres. A file that is not of this version keeps it there."""
        # Mark and checkpoint first: without segments they would tell of records that are gone.
        segments = [segment_path(self.folder, number).name for number in segment_numbers(self.folder)]
        with contextlib.suppress(OSError):
            for name in (MARK, CHECKPOINT, f"{CHECKPOINT}.new", *segments, LOCK):
                (self.folder / name).unlink(missing_ok=True)
            self.folder.rmdir()

    def restore(self) -> None:
        """Make the folder, and our lock on it, once more after somebody took it away. Raises `OSError`."""
        if (self.folder / LOCK).exists() and os.path.samestat((self.folder / LOCK).stat(), os.fstat(self._lock)):
            return
        if self.folder.exists():
            lock = _lock(self.folder)
            if lock is None:
                raise OSError("the spool folder is locked by another process")
        else:
            # Under its name only once it is locked: another process would take it for that of a dead one.
            self.folder.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
            fresh = self.folder.parent / f".{self.folder.name}.{secrets.token_hex(4)}"
            fresh.mkdir(mode=0o700)
            lock = _lock(fresh)
            if lock is None:
                raise OSError("a new spool folder is locked by another process")
            fresh.rename(self.folder)
        old, self._lock = self._lock, lock
        os.close(old)


def create_boot(spool_dir: Path, node_id: str, boot_id: UUID) -> Boot:
    """Raises `OSError` when the spool folder cannot be written."""
    # A host name is data: only its harmless characters may become part of a path.
    node = re.sub(r"[^A-Za-z0-9_.-]", "_", node_id)[:100].lstrip(".") or "node"
    node = f"{node}_" if node == QUARANTINE else node
    folder = spool_dir / node / str(boot_id)
    folder.mkdir(parents=True, mode=0o700)
    boot = _take(folder, boot_id)
    if boot is None:
        raise OSError("a new spool folder is locked by another process")
    return boot


def boot_folders(spool_dir: Path) -> Iterator[Path]:
    """Oldest first."""
    for folder in sorted(spool_dir.glob("*/*"), key=lambda path: path.name):
        with contextlib.suppress(ValueError):
            UUID(folder.name)
            if folder.parent.name != QUARANTINE:
                yield folder


def dead_boots(spool_dir: Path, own: UUID) -> Iterator[Boot]:
    """Folders of processes that are gone, oldest first, each locked so that one process alone takes it over."""
    for folder in boot_folders(spool_dir):
        boot_id = UUID(folder.name)
        if boot_id != own:
            boot = _take(folder, boot_id)
            if boot is not None:
                yield boot


def commitment_key(spool_dir: Path, configured: bytes | None) -> bytes:
    """The configured key, else one that is made on first use and kept beside the spool."""
    if configured is not None:
        return configured
    with contextlib.suppress(FileNotFoundError):
        return (spool_dir / KEY_FILE).read_bytes()
    return restore_key(spool_dir, secrets.token_bytes(32))


def restore_key(spool_dir: Path, key: bytes | None) -> bytes:
    """Keep `key` beside the spool unless one is there; the one that is there then. None: it is kept elsewhere."""
    if key is None:
        return b""
    path = spool_dir / KEY_FILE
    spool_dir.mkdir(parents=True, mode=0o700, exist_ok=True)
    partial = spool_dir / f"{KEY_FILE}.{os.getpid()}"
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key)
        file.flush()
        os.fsync(file.fileno())
    # The first of several starting processes wins; the others read its key.
    with contextlib.suppress(FileExistsError):
        os.link(partial, path)
    partial.unlink()
    return path.read_bytes()


def _take(folder: Path, boot_id: UUID) -> Boot | None:
    try:
        lock = _lock(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return None if lock is None else Boot(folder, boot_id, lock)


def _lock(folder: Path) -> int | None:
    """None when another process has it. Raises `OSError`."""
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock
