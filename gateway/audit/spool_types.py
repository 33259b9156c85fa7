"""Values exchanged between the event loop and the spool's thread: entries, limits, positions, refusals. No threads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass


class SpoolClosed(Exception):
    """The record was not accepted. `written` is true when it may be on disk all the same."""

    def __init__(self, reason: str, *, written: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.written = written


@dataclass(frozen=True, slots=True)
class SpoolLimits:
    quota_bytes: int
    segment_bytes: int = 16 * 1024 * 1024
    group_records: int = 256
    window_s: float = 0.002
    sync_each_group: bool = True
    """False (`fast` mode): waiters are told once the kernel has the bytes."""


@dataclass(slots=True, eq=False)
class Entry:
    rec: bytes
    side: bytes
    future: asyncio.Future[None] | None
    keep: bool


@dataclass(frozen=True, slots=True)
class Position:
    """Everything before `offset` of segment `number`, and all of the earlier ones, may be read; `seq` is the last."""

    number: int
    offset: int
    seq: int = 0


def settle(futures: Sequence[asyncio.Future[None] | None], error: SpoolClosed | None) -> None:
    for future in futures:
        if future is None or future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
