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

from gateway.audit import quarantine
from gateway.audit.boot_reader import BootReader, bytes_on_disk
from gateway.audit.canonical import parse_json
from gateway.audit.damage import ACTION, Damage, damage_of, lost_until
from gateway.audit.quarantine import Kept
from gateway.audit.shipper import OUTAGE, OnRefused, Shipper
from gateway.audit.spool import Spool
from gateway.audit.spool_dirs import Boot, dead_boots
from gateway.audit.spool_types import Position, SpoolClosed
from gateway.flow.context import Clock

log = logging.getLogger("esclusa.audit")

LINGER_S = 0.25
"""A batch gathers this long when nobody waits for it: a round trip has a fixed price, whatever its size."""
BACKOFF_S = (0.25, 0.5, 1.0, 2.0, 4.0)
MAINTENANCE_S = 3600.0
MAINTENANCE_RETRY_S = 60.0
COUNT_S = 60.0
LOOK_S = 10.0
"""An idle courier looks this often whether there is something to do."""
SKEW_S = 60.0
"""A clock that differs from Postgres' by more than this is told."""

_ORPHANS = text("""
SELECT rec, personal, node_seq FROM audit_event AS intent
WHERE boot_id = :boot_id AND phase = 'intent' AND NOT EXISTS (
    SELECT 1 FROM audit_event AS done
    WHERE done.request_id = intent.request_id AND done.phase IN ('completion', 'denied'))
ORDER BY node_seq
""")

# The request id of such a record is the boot that is damaged: there is an index on it.
_DAMAGES = text(f"SELECT rec FROM audit_event WHERE request_id = :boot_id AND phase = 'admin' AND action = '{ACTION}'")

CloseOrphan = Callable[[dict[str, Any], dict[str, str], bool], Awaitable[None]]
"""Writes the completion of (intent document, personal values) durably; the third says that the real one may be lost."""
WriteDamage = Callable[[Damage], Awaitable[None]]
"""Keeps a damage on record, durably. Raises `OSError` when that cannot be done now."""


@dataclass(frozen=True, slots=True)
class Lag:
    """Every event of this process before `watermark` is in Postgres; `seconds` is how far that is behind now."""

    watermark: datetime
    seconds: float


class ShippingLoop:
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
        write_damage: WriteDamage,
        write_refused: OnRefused,
        open_requests: Callable[[], frozenset[UUID]],
    ) -> None:
        self._engine, self._spool, self._own, self._spool_dir = engine, spool, own, spool_dir
        self._clock, self._close_orphan = clock, close_orphan
        self._write_damage, self._open_requests = write_damage, open_requests
        self._reader = BootReader(own.folder)
        self._reader.begin()
        self.shipper = Shipper(engine, node_id, clock, self._report, write_refused)
        self.kept = Kept()
        """The contents of the quarantine."""
        self.refused_rows = 0
        """Rows in the table of the quarantine, counted once a minute and after each that is put there."""
        self.stray_rows = 0
        """Rows in the default partition: dated for a month that has none."""
        self.house = ""
        """Why partitions cannot be made at the moment; empty when all is well."""
        self._own_damages: list[Damage] = []
        self._skewed = False
        self._work, self._urgent = asyncio.Event(), asyncio.Event()
        self._round = asyncio.Condition()
        self._pending_since: datetime | None = None
        self._dead: dict[UUID, Boot] = {}
        self._recovered = False
        self._outage = ""
        self._maintenance_due_s = self._count_due_s = 0.0
        self._counted = 0

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

    def dead_boots(self) -> tuple[UUID, ...]:
        """Processes of this spool that are known to have ended: their locks are ours."""
        return tuple(self._dead)

    def dead_folders(self) -> tuple[Path, ...]:
        return tuple(boot.folder for boot in self._dead.values())

    def dead_bytes(self) -> int:
        return sum(bytes_on_disk(boot.folder) for boot in self._dead.values())

    def take_over(self) -> None:
        """Lock the folders of dead processes. Reads directories only."""
        for boot in dead_boots(self._spool_dir, self._own.boot_id):
            self._dead.setdefault(boot.boot_id, boot)
        self._recovered = not self._dead
        self.kept = quarantine.survey(self._spool_dir)
        self._work.set()

    async def run(self) -> None:
        failures = 0
        while True:
            if failures:
                await asyncio.sleep(BACKOFF_S[min(failures, len(BACKOFF_S)) - 1])
            else:
                await self._wait_for_work()
            self._urgent.clear()
            try:
                await self._one_round()
                failures = 0
                if self._outage:
                    log.info("audit records are shipped again")
                self._outage = ""
            except FileNotFoundError:
                # Somebody removed the folder under us: the writer still has the file, and puts it back.
                failures += 1
                self._outage = "the spool folder is missing"
                self._spool.suspect()
            except OUTAGE as error:
                failures += 1
                if not self._outage:
                    log.warning("audit records wait in the spool: %s", _cause(error))
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
                        self._urgent.set()
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
            async with asyncio.timeout(LOOK_S):
                await self._work.wait()
        except TimeoutError:
            return
        if not self._urgent.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    await self._urgent.wait()

    async def _one_round(self) -> None:
        self._work.clear()
        house = await self._maintain_partitions()
        # An operator may have taken files out of the quarantine.
        self.kept = await asyncio.to_thread(quarantine.survey, self._spool_dir)
        before, upto = self._clock.now(), self._spool.position
        await self.shipper.ship(self._reader, upto)
        self._report_partitions(house)
        caught_up = self._reached(self._spool.position)
        self._pending_since = None if caught_up else before
        self._account(upto)
        self._compare_clocks()
        if self._own_damages:
            await self._close_lost()
        if self._dead:
            await self._recover()
        await self._count_refused()

    async def _maintain_partitions(self) -> str | None:
        """Why it failed; "" when it did not, None when it is not time. A failure must not keep records from being
        shipped: they have the default partition to go to."""
        started = self._clock.monotonic_s()
        if started < self._maintenance_due_s:
            return None
        try:
            self.stray_rows = await self.shipper.maintain_partitions()
        except OUTAGE as error:
            return _cause(error)
        self._maintenance_due_s = started + MAINTENANCE_S
        if self.stray_rows:
            log.error("%d audit records are dated for a month without a partition: a clock was wrong", self.stray_rows)
        return ""

    def _report_partitions(self, failure: str | None) -> None:
        """Once records were shipped: else Postgres is away, which says it all, and it is tried with the next round."""
        if failure is None:
            return
        if failure:
            self._maintenance_due_s = self._clock.monotonic_s() + MAINTENANCE_RETRY_S
            if not self.house:
                log.error("partitions of the audit trail cannot be made: %s", failure)
        self.house = failure

    async def _count_refused(self) -> None:
        now = self._clock.monotonic_s()
        if now < self._count_due_s and self._counted == self.shipper.quarantined:
            return
        self.refused_rows = await self.shipper.count_refused()
        self._count_due_s, self._counted = now + COUNT_S, self.shipper.quarantined

    def _compare_clocks(self) -> None:
        skewed = abs(self.shipper.skew_s) > SKEW_S
        if skewed and not self._skewed:
            log.error("this machine's clock differs from Postgres' by %.0f s", self.shipper.skew_s)
        self._skewed = skewed

    def _reached(self, target: Position) -> bool:
        at = self._reader.checkpoint
        return (at.number, at.offset) >= (target.number, target.offset)

    def _account(self, upto: Position) -> None:
        """Tell the spool what is left on disk; ask for a new segment when the open one is all shipped and large."""
        kept = bytes_on_disk(self._own.folder, but=upto.number)
        self._spool.released(kept + self.dead_bytes())
        if upto.offset > self._spool.segment_bytes // 4 and self._reached(self._spool.position):
            self._spool.rotate()

    async def _recover(self) -> None:
        """First all that dead processes wrote, only then what they left open: a completion may lie in a later boot."""
        for boot in self._dead.values():
            await self.shipper.ship(BootReader(boot.folder), None)
        for boot in list(self._dead.values()):
            # The records of what is damaged are ours, and tell which intents nobody can say anything of.
            await self.shipper.ship(self._reader, self._spool.position)
            interrupted, lost = await self._close_open(boot.boot_id, lost_until(await self._damages(boot.boot_id)))
            if interrupted:
                log.warning("%d requests of a process that died are recorded as interrupted", interrupted)
            if lost:
                log.error("%d requests may have ended in records that are lost; they are recorded so", lost)
            boot.remove()
            boot.release()
            del self._dead[boot.boot_id]
        self._recovered = True
        self._spool.released(bytes_on_disk(self._own.folder, but=self._spool.position.number))

    async def _damages(self, boot_id: UUID) -> list[Damage]:
        async with self._engine.connect() as connection:
            found = (await connection.execute(_DAMAGES, {"boot_id": boot_id})).all()
        return [damage_of(parse_json(rec)) for (rec,) in found]

    async def _close_open(
        self, boot_id: UUID, doubt_below: float, *, only_doubtful: bool = False, but: frozenset[UUID] = frozenset()
    ) -> tuple[int, int]:
        """Complete the intents of a boot that have no completion; how many were interrupted, and of how many the real
        completion may be lost (those numbered below `doubt_below`)."""
        async with self._engine.connect() as connection:
            found = (await connection.execute(_ORPHANS, {"boot_id": boot_id})).all()
        counts = [0, 0]
        for rec, personal, seq in found:
            doubtful = seq < doubt_below
            intent = parse_json(rec)
            if (only_doubtful and not doubtful) or UUID(intent["request_id"]) in but:
                continue
            kept = orjson.loads(personal) if isinstance(personal, str) else (personal or {})
            await self._close_orphan(intent, kept, doubtful)
            counts[doubtful] += 1
        return counts[0], counts[1]

    async def _close_lost(self) -> None:
        """Requests of this process whose completion was lost while it runs: not open any more, and nothing tells."""
        running = self._open_requests()
        try:
            await self._spool.flush()
        except SpoolClosed:
            return
        await self.shipper.ship(self._reader, self._spool.position)
        damages = list(self._own_damages)
        _, lost = await self._close_open(self._own.boot_id, lost_until(damages), only_doubtful=True, but=running)
        if lost:
            log.error("%d requests may have ended in records that are lost; they are recorded so", lost)
        del self._own_damages[: len(damages)]

    async def _report(self, reader: BootReader, damage: Damage) -> None:
        """The damaged file aside, the loss on record, then a note beside the file: once for each damage."""
        if damage.boot_id == self._own.boot_id and damage not in self._own_damages:
            self._own_damages.append(damage)
            self._spool.rotate()
        if quarantine.is_noted(self._spool_dir, damage):
            return
        log.error("audit spool is damaged: %s; the file is kept in %s/", damage, quarantine.QUARANTINE)
        quarantine.keep_aside(self._spool_dir, reader.folder, damage)
        await self._write_damage(damage)
        quarantine.note(self._spool_dir, damage)
        self.kept = quarantine.survey(self._spool_dir)


def _cause(error: BaseException) -> str:
    """For the log: what an operator can act on, without values of records."""
    kind = type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        return f"{kind}: {error.strerror}"
    return f"Postgres answers {kind}"
