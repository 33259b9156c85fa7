"""Shipping state of a spool: the last number of each run that is in Postgres, and the ends of runs that stopped.

Kept outside the database, so that what is deleted there is missed here, the newest run included. Reads beside living
writers, without a lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from gateway.audit.boot_reader import BootReader, Checkpoint
from gateway.audit.canonical import parse_json
from gateway.audit.columns import DERIVED, decode_side, derive
from gateway.audit.ended import noted_ends
from gateway.audit.heads import Head
from gateway.audit.segment import Frame
from gateway.audit.spool_dirs import boot_folders


@dataclass(frozen=True, slots=True)
class Shipped:
    """`upto`: the last number in Postgres, by boot. `ends`: heads of runs that shipped everything and stopped."""

    upto: Mapping[UUID, int]
    ends: tuple[Head, ...]


def read_shipped(spool_dir: Path) -> Shipped:
    """The commits before this call. Raises `OSError` when the spool, or a part of it, cannot be read."""
    for node in spool_dir.iterdir():
        if node.is_dir():
            next(node.iterdir(), None)  # a pattern passes over what it may not read
    upto: dict[UUID, int] = {}
    for folder in boot_folders(spool_dir):
        try:
            next(folder.iterdir(), None)
        except (FileNotFoundError, NotADirectoryError):
            continue  # its process ended while we look, and left word of that
        seq = Checkpoint.load(folder).seq
        if seq is not None:
            upto[UUID(folder.name)] = seq
    return Shipped(upto, tuple(noted_ends(spool_dir)))


MOST = 100_000
SHOWN = ("target", "model_requested")
"""Shown as they were sent, like the reader does."""


def unshipped(spool_dir: Path) -> Iterator[dict[str, Any]]:
    """Rows like those of the table, with `personal`, `record` and `spooled: True`; by boot, in order."""
    for folder in boot_folders(spool_dir):
        # A segment that is shipped and deleted while we look is nothing to report.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for frame in BootReader(folder).batch(None, MOST).frames:
                yield spooled_row(frame)


def spooled_row(frame: Frame) -> dict[str, Any]:
    document = parse_json(frame.rec)
    personal, _ = decode_side(frame.side)
    return {
        **dict(zip(DERIVED, derive(document), strict=True)),
        **{name: personal[name] for name in SHOWN if name in personal},
        "node_seq": frame.seq,
        "subject": personal.get("subject"),
        "personal": personal,
        "prev_hash": frame.prev_hash.hex(),
        "hash": frame.hash.hex(),
        "ingested_at": None,
        "record": document,
        "spooled": True,
    }
