"""Events that are durable in a spool and not yet in Postgres, as rows. Reads beside a living writer, without a lock."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

from gateway.audit.canonical import parse_json
from gateway.audit.columns import DERIVED, decode_side, derive
from gateway.audit.segment import Frame
from gateway.audit.shipper import BootReader

MOST = 100_000


def unshipped(spool_dir: Path) -> Iterator[dict[str, Any]]:
    """Rows like those of the table, with `personal`, `record` and `spooled: True`; by boot, in order."""
    for folder in sorted(spool_dir.glob("*/*")):
        # A name that is no boot's, or a segment shipped and deleted while we look, is nothing to report.
        with contextlib.suppress(ValueError, FileNotFoundError, NotADirectoryError):
            UUID(folder.name)
            frames, _ = BootReader(folder).batch(None, MOST)
            for frame in frames:
                yield spooled_row(frame)


def spooled_row(frame: Frame) -> dict[str, Any]:
    document = parse_json(frame.rec)
    personal, _ = decode_side(frame.side)
    return {
        **dict(zip(DERIVED, derive(document), strict=True)),
        "node_seq": frame.seq,
        "subject": personal.get("subject"),
        "personal": personal,
        "prev_hash": frame.prev_hash.hex(),
        "hash": frame.hash.hex(),
        "ingested_at": None,
        "record": document,
        "spooled": True,
    }
