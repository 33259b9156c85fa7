"""The background half of the audit: carries the spool to Postgres, closes what dead processes left open, reports lag.

Runs as one task on the event loop. An outage of Postgres only makes it wait; requests never notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.audit.boots import Boot, dead_boots
from gateway.audit.canonical import parse_json
from gateway.audit.group import Position
from gateway.audit.shipper import OUTAGE, BootReader, Shipper
from gateway.audit.spool import Spool
from gateway.flow.context import Clock

log = logging.getLogger("esclusa.audit")

LINGER_S = 0.25
"""A batch gathers this long when nobody waits for it: a round trip has a fixed price, whatever its size."""
BACKOFF_S = (0.25, 0.5, 1.0, 2.0, 4.0)
PARTITION_CHECK_S = 3600.0

_ORPHANS = text("""
SELECT rec, personal FROM audit_event AS intent
WHERE boot_id = :boot_id AND phase = 'intent' AND NOT EXISTS (
    SELECT 1 FROM audit_event AS done
    WHERE done.request_id = intent.request_id AND done.phase IN ('completion', 'denied'))
ORDER BY node_seq
""")

CloseOrphan = Callable[[dict[str, Any], dict[str, str]], Awaitable[None]]
"""Writes the `interrupted` completion of (intent document, personal values) durably."""


@dataclass(frozen=True, slots=True)
class Lag:
    """Every event of this process before `watermark` is in Postgres; `seconds` is how far that is behind now."""

    watermark: datetime
    seconds: float


class Courier:
    """`run` until cancelled; `settle` to see one's own writes; `finish` at the end."""

    def __init__(
        self,
        engine: AsyncEngine,
        spool: Spool,
        own: Boot,
        spool_dir: Path,
        node_id: str,
        clock: Clock,
        close_orphan: CloseOrphan,
    ) -> None:
        self._engine, self._spool, self._own, self._spool_dir = engine, spool, own, spool_dir
        self._clock, self._close_orphan = clock, close_orphan
        self._reader = BootReader(own.folder)
        self.shipper = Shipper(engine, node_id)
        self._work, self._hurry = asyncio.Event(), asyncio.Event()
        self._round = asyncio.Condition()
        self._pending_since: datetime | None = None
        self._dead: dict[UUID, Boot] = {}
        self._recovered = False
        self._outage = ""
        self._partitions_at: float | None = None

    def committed(self) -> None:
        """The spool wrote a group."""
        if self._pending_since is None:
            self._pending_since = self._clock.now()
        self._work.set()

    def lag(self) -> Lag:
        now = self._clock.now()
        since = min(self._pending_since or now, now)
        return Lag(watermark=since, seconds=(now - since).total_seconds())

    @property
    def outage(self) -> str:
        """Why nothing is shipped at the moment; empty when all is well."""
        return self._outage

    @property
    def recovered(self) -> bool:
        """True once nothing of dead processes is left to do."""
        return self._recovered

    def dead_bytes(self) -> int:
        return sum(BootReader(boot.folder).bytes_on_disk() for boot in self._dead.values())

    def take_over(self) -> None:
        """Lock the folders of dead processes. Reads directories only."""
        for boot in dead_boots(self._spool_dir, self._own.boot_id):
            self._dead.setdefault(boot.boot_id, boot)
        self._recovered = not self._dead
        self._work.set()

    async def run(self) -> None:
        failures = 0
        while True:
            if failures:
                await asyncio.sleep(BACKOFF_S[min(failures, len(BACKOFF_S)) - 1])
            else:
                await self._wait_for_work()
            self._hurry.clear()
            try:
                await self._one_round()
                failures = 0
                if self._outage:
                    log.info("audit records are shipped again")
                self._outage = ""
            except OUTAGE as error:
                failures += 1
                if not self._outage:
                    log.warning("audit records wait in the spool: Postgres answers %s", type(error).__name__)
                self._outage = type(error).__name__
            async with self._round:
                self._round.notify_all()

    async def settle(self, timeout_s: float) -> Lag:
        """Wait, at most so long, until everything written before this call can be queried."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._spool.flush()
                target = self._spool.position
                while not self._reached(target) and not self._outage:
                    async with self._round:
                        self._hurry.set()
                        self._work.set()
                        await self._round.wait()
        return self.lag()

    async def finish(self, timeout_s: float) -> bool:
        """After the spool is closed: ship the rest. True when nothing is left in our folder."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.shipper.ship(self._reader, None)
                return True
        except OUTAGE as error:
            log.warning("audit records stay in the spool for the next start: %s", type(error).__name__)
            return False

    def release(self) -> None:
        for boot in self._dead.values():
            boot.release()

    async def _wait_for_work(self) -> None:
        try:
            async with asyncio.timeout(PARTITION_CHECK_S):
                await self._work.wait()
        except TimeoutError:
            return
        if not self._hurry.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    await self._hurry.wait()

    async def _one_round(self) -> None:
        self._work.clear()
        started = self._clock.monotonic_s()
        if self._partitions_at is None or started - self._partitions_at > PARTITION_CHECK_S:
            await self.shipper.keep_house()
            self._partitions_at = started
        before, upto = self._clock.now(), self._spool.position
        await self.shipper.ship(self._reader, upto)
        caught_up = self._reached(self._spool.position)
        self._pending_since = None if caught_up else before
        self._account(upto)
        if self._dead:
            await self._recover()

    def _reached(self, target: Position) -> bool:
        at = self._reader.checkpoint
        return (at.number, at.offset) >= (target.number, target.offset) or not self._reader.pending(target)

    def _account(self, upto: Position) -> None:
        """Tell the spool what is left on disk; ask for a new segment when the open one is all shipped and large."""
        kept = self._reader.bytes_on_disk(but=upto.number)
        self._spool.released(kept + self.dead_bytes())
        if upto.offset > self._spool.segment_bytes // 4 and self._reached(self._spool.position):
            self._spool.rotate()

    async def _recover(self) -> None:
        """First all that dead processes wrote, only then what they left open: a completion may lie in a later boot."""
        for boot in self._dead.values():
            await self.shipper.ship(BootReader(boot.folder), None)
        for boot in list(self._dead.values()):
            await self.shipper.ship(self._reader, self._spool.position)
            async with self._engine.connect() as connection:
                found = (await connection.execute(_ORPHANS, {"boot_id": boot.boot_id})).all()
            for rec, personal in found:
                kept = orjson.loads(personal) if isinstance(personal, str) else (personal or {})
                await self._close_orphan(parse_json(rec), kept)
            if found:
                log.warning("%d requests of a process that died are recorded as interrupted", len(found))
            boot.remove()
            boot.release()
            del self._dead[boot.boot_id]
        self._recovered = True
        self._spool.released(self._reader.bytes_on_disk(but=self._spool.position.number))
