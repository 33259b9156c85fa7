"""Events that are durable in a spool and not yet in Postgres, as rows. Reads beside a living writer, without a lock."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gateway.audit.boot_reader import BootReader
from gateway.audit.canonical import parse_json
from gateway.audit.columns import DERIVED, decode_side, derive
from gateway.audit.segment import Frame
from gateway.audit.spool_dirs import boot_folders

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
