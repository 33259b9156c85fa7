"""State that earlier runs leave in the spool for the next one: the ends of their chains, and their order.

`spool/.ended/<boot>.json` is written by a run that ends with everything shipped, and deleted by the run that has named
it in its first record. A run that was killed leaves its folder instead, which says the same. Knows files.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

import orjson

from gateway.audit.heads import Head, head_of_data
from gateway.audit.segment import Frame, segment_numbers, segment_path, sync_folder
from gateway.audit.segment_reader import read_header, read_pieces

FOLDER = ".ended"
LINE = "line"
_SUFFIX = ".json"


def join_line(spool_dir: Path, fresh: UUID) -> tuple[UUID, bool]:
    """The line of runs of this spool, and whether `fresh` begins it. Raises `OSError`."""
    folder = _folder(spool_dir)
    with contextlib.suppress(FileNotFoundError, ValueError):
        return UUID((folder / LINE).read_text()), False
    _write(folder, LINE, str(fresh).encode())
    return fresh, True


def note_end(spool_dir: Path, head: Head) -> None:
    """Durable when it returns. Raises `OSError`."""
    _write(_folder(spool_dir), f"{head.boot_id}{_SUFFIX}", orjson.dumps(head.data()))


def noted_ends(spool_dir: Path) -> list[Head]:
    found = []
    for path in sorted((spool_dir / FOLDER).glob(f"*{_SUFFIX}")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found.append(head_of_data(orjson.loads(path.read_bytes())))
    return found


def forget_ends(spool_dir: Path, heads: Iterable[Head]) -> None:
    with contextlib.suppress(OSError):
        for head in heads:
            (spool_dir / FOLDER / f"{head.boot_id}{_SUFFIX}").unlink(missing_ok=True)


def end_of(folder: Path) -> Head | None:
    """The end of a dead run's chain, from its own folder; None when it never wrote a record. Raises `OSError`."""
    boot_id = UUID(folder.name)
    for number in reversed(segment_numbers(folder)):
        path = segment_path(folder, number)
        last: Frame | None = None
        for piece in read_pieces(path, boot_id, 0):
            last = piece if isinstance(piece, Frame) else last
        if last is not None:
            return Head(folder.parent.name, boot_id, last.seq, last.hash)
        header = read_header(path)
        if header is not None and header.first_seq > 1:
            return Head(folder.parent.name, boot_id, header.first_seq - 1, header.prev_hash)
    return None


def _folder(spool_dir: Path) -> Path:
    folder = spool_dir / FOLDER
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    return folder


def _write(folder: Path, name: str, data: bytes) -> None:
    partial = folder / f"{name}.{secrets.token_hex(4)}"
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(folder / name)
    sync_folder(folder)
