"""One run of the gateway as a link of the trail: its first record names where earlier runs ended, its seals name how
far it and other replicas have come. So a run that is deleted, cut or rewritten is missed by the others.

A clean stop and a kill -9 link alike. Heads also go to the log, for those who keep logs elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Protocol
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.audit.ended import end_of, forget_ends, join_line, note_end, noted_ends
from gateway.audit.event import Origin, Record
from gateway.audit.heads import Head, newest
from gateway.audit.shipper import OUTAGE
from gateway.audit.spool_types import SpoolClosed
from gateway.audit.system_event import seal_record, start_record
from gateway.flow.context import Clock, IdSource

log = logging.getLogger("esclusa.audit")

MOST_KNOWN = 256
"""Other runs that one record names at most, the newest first: older ones were named by earlier records."""
DATABASE_S = 2.0

# Ids of runs are ordered by time, and an index has them with their numbers: a jump for each run instead of a scan.
_KNOWN = text("""
WITH RECURSIVE run AS (
    (SELECT node_id, boot_id, node_seq, hash FROM audit_event ORDER BY boot_id DESC, node_seq DESC LIMIT 1)
    UNION ALL
    SELECT older.* FROM run, LATERAL (
        SELECT node_id, boot_id, node_seq, hash FROM audit_event WHERE boot_id < run.boot_id
        ORDER BY boot_id DESC, node_seq DESC LIMIT 1) AS older
)
SELECT node_id, boot_id, node_seq, hash FROM run LIMIT :most
""")


class Chain(Protocol):
    """The spool as a run needs it."""

    @property
    def head(self) -> tuple[int, bytes]: ...

    def submit(self, rec: bytes, side: bytes, *, wait: bool, keep: bool) -> asyncio.Future[None] | None: ...


class Run:
    """`begin` before any other record, `keep_sealing` as a task, `end` when nothing more is written."""

    def __init__(
        self, engine: AsyncEngine, origin: Origin, chain: Chain, spool_dir: Path, clock: Clock, ids: IdSource
    ) -> None:
        self._engine, self._origin, self._chain, self._spool_dir = engine, origin, chain, spool_dir
        self._clock, self._ids = clock, ids
        self._announced: dict[UUID, int] = {}
        self.sealed_seq = 0
        """The last number of our own chain that a seal has named."""

    async def begin(self, dead: Sequence[Path]) -> None:
        """Write the first record; `dead` are the folders of runs that ended without closing them."""
        loop = asyncio.get_running_loop()
        previous = await loop.run_in_executor(None, partial(_ends, self._spool_dir, dead))
        line, begins = join_line(self._spool_dir, self._origin.boot_id)
        if begins:
            log.info("a new line of audit runs begins: %s holds no earlier one", self._spool_dir)
        for head in previous:
            log.info("an earlier audit run ended: %s", head)
        known = await self._known()
        record = start_record(
            self._origin,
            self._ids.uuid7(),
            self._clock.now(),
            line=line,
            begins=begins,
            previous=previous,
            known=None if known is None else self._news(known),
        )
        written = self._submit(record, keep=True)
        written.add_done_callback(lambda done: self._linked(done, previous))

    async def keep_sealing(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            await self.seal()

    async def seal(self) -> None:
        """Name the present heads, unless nothing but the last seal was written since."""
        seq, own_hash = self._chain.head
        if seq <= self.sealed_seq + 1:
            return
        own = Head(self._origin.node_id, self._origin.boot_id, seq, own_hash)
        others = self._news(await self._known() or ())
        record = seal_record(self._origin, self._ids.uuid7(), self._clock.now(), [own, *others])
        try:
            await self._submit(record, keep=False)
        except SpoolClosed:
            return
        self.sealed_seq = seq
        log.info("audit sealed: %s", own)

    def end(self) -> bool:
        """Leave word for the next run that everything is shipped. False: it was not possible, so keep our folder."""
        seq, own_hash = self._chain.head
        head = Head(self._origin.node_id, self._origin.boot_id, seq, own_hash)
        log.info("audit run ends: %s", head)
        try:
            if seq:
                note_end(self._spool_dir, head)
        except OSError as error:
            log.warning("the end of this audit run cannot be noted: %s", error.strerror or error)
            return False
        return True

    async def _known(self) -> list[Head] | None:
        """Heads of the runs in the database; None when it does not answer in time."""
        try:
            async with asyncio.timeout(DATABASE_S), self._engine.connect() as connection:
                try:
                    rows = (await connection.execute(_KNOWN, {"most": MOST_KNOWN})).all()
                except BaseException:
                    await connection.invalidate()
                    raise
        except OUTAGE:
            return None
        return [Head(node, UUID(int=boot.int), seq, bytes(hashed)) for node, boot, seq, hashed in rows]

    def _news(self, known: Sequence[Head]) -> list[Head]:
        """Other runs that have come further than when we last named them."""
        fresh = [
            head
            for head in known
            if head.boot_id != self._origin.boot_id and self._announced.get(head.boot_id, 0) < head.seq
        ]
        self._announced = {head.boot_id: head.seq for head in known}
        return fresh

    def _submit(self, record: Record, *, keep: bool) -> asyncio.Future[None]:
        future = self._chain.submit(record.rec, record.side, wait=True, keep=keep)
        assert future is not None, "who waits is given a future"
        return future

    def _linked(self, written: asyncio.Future[None], previous: Sequence[Head]) -> None:
        if not written.cancelled() and written.exception() is None:
            forget_ends(self._spool_dir, previous)


def _ends(spool_dir: Path, dead: Sequence[Path]) -> list[Head]:
    ends = [*noted_ends(spool_dir), *filter(None, map(end_of, dead))]
    return sorted(newest(ends).values(), key=lambda head: head.boot_id)
