"""Ships spooled records to Postgres: exactly once, whatever stops in between.

COPY into a temporary table, `INSERT ... ON CONFLICT DO NOTHING`, commit, then the checkpoint, then delete the segment.
A row that Postgres refuses is found by halving and goes to `audit_quarantine`, which a record in the trail tells; an
outage only makes records wait.
Knows the spool's files and one table; not requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import asyncpg
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.audit.boot_reader import BootReader
from gateway.audit.canonical import storable
from gateway.audit.columns import CONTENT, SHIPPED, content_rows, row
from gateway.audit.damage import Damage
from gateway.audit.segment import Frame
from gateway.audit.spool_types import Position
from gateway.flow.context import Clock

log = logging.getLogger("esclusa.audit")

BATCH = 1024
SLICE = 48
"""Rows prepared without letting the event loop run: about one millisecond."""
TIMEOUT_S = 15.0
SKEW_S = 60.0
"""A record this far ahead of Postgres' clock was written by a clock that is wrong."""

OUTAGE = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, SQLAlchemyError)
"""Raised by `ship` when Postgres is away, full, read-only or not migrated: try again later."""

_POISON = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    ValueError,
    TypeError,
    KeyError,
    OverflowError,
)

_COLUMNS = ", ".join(SHIPPED)
_TS = SHIPPED.index("ts")
_STAGE = f"""
CREATE TEMPORARY TABLE IF NOT EXISTS audit_stage ON COMMIT DELETE ROWS AS
SELECT {_COLUMNS} FROM audit_event WITH NO DATA
"""
_INSERT = f"INSERT INTO audit_event ({_COLUMNS}) SELECT {_COLUMNS} FROM audit_stage ON CONFLICT DO NOTHING"
_CONTENT_COLUMNS = ", ".join(CONTENT)
_CONTENT_STAGE = f"""
CREATE TEMPORARY TABLE IF NOT EXISTS audit_content_stage ON COMMIT DELETE ROWS AS
SELECT {_CONTENT_COLUMNS} FROM audit_content WITH NO DATA
"""
# Only beside a record that is new: shipping once more must not bring back what was erased in between.
_CONTENT_INSERT = f"""
WITH fresh AS ({_INSERT} RETURNING event_id)
INSERT INTO audit_content ({_CONTENT_COLUMNS})
SELECT {_CONTENT_COLUMNS} FROM audit_content_stage JOIN fresh USING (event_id) ON CONFLICT DO NOTHING
"""
_STRAY = "SELECT count(*) FROM audit_event_default"
_EXPIRE = "DELETE FROM audit_content WHERE expires_at < clock_timestamp()"
_QUARANTINE = """
INSERT INTO audit_quarantine (node_id, boot_id, node_seq, rec, prev_hash, hash, side, error)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING
"""

# Not all of a table that somebody may have filled.
_REFUSED = "SELECT count(*) FROM (SELECT FROM audit_quarantine LIMIT 10000) AS aside"

OnRefused = Callable[[Frame, str], Awaitable[None]]
"""Keeps on record that a row was put aside, and for what kind of error; durable when it returns. Raises `OSError`."""
OnDamage = Callable[[BootReader, Damage], Awaitable[None]]
"""Says and keeps on record what cannot be read; returns when that is durable. Raises one of `OUTAGE`."""


class Shipper:
    """Ships batches of one process's folders through one pooled connection at a time."""

    def __init__(
        self, engine: AsyncEngine, node_id: str, clock: Clock, on_damage: OnDamage, on_refused: OnRefused
    ) -> None:
        self._engine = engine
        self._node_id = node_id
        self._clock, self._on_damage, self._on_refused = clock, on_damage, on_refused
        self.shipped = 0
        self.quarantined = 0
        self.misdated = 0
        """Records that were later than Postgres' clock when they were shipped."""
        self.skew_s = 0.0
        """Our clock minus Postgres', at the last batch."""

    async def ship(self, reader: BootReader, upto: Position | None) -> None:
        """Ship everything up to the position; report what is damaged before it is passed. Raises one of `OUTAGE`."""
        while True:
            batch = await asyncio.to_thread(reader.batch, upto, BATCH)
            if batch.frames:
                async with asyncio.timeout(4 * TIMEOUT_S):
                    await self._store(batch.frames)
                self.shipped += len(batch.frames)
            for damage in batch.damages:
                await self._on_damage(reader, damage)
            if batch.behind != reader.checkpoint:
                reader.advance(batch.behind)
            elif not batch.frames:
                return

    async def maintain_partitions(self, months_ahead: int = 3) -> int:
        """Partitions for what comes, and no content past its time. Returns how many rows no partition takes."""
        async with self._engine.connect() as connection:
            await connection.exec_driver_sql(f"SELECT audit_ensure_partitions({int(months_ahead)})")
            await connection.exec_driver_sql(_EXPIRE)
            stray = (await connection.exec_driver_sql(_STRAY)).scalar_one()
            await connection.commit()
            return int(stray)

    async def count_refused(self) -> int:
        return await count_refused(self._engine)

    async def _store(self, frames: Sequence[Frame]) -> None:
        async with self._engine.connect() as pooled:
            raw: Any = (await pooled.get_raw_connection()).driver_connection
            try:
                await self._insert(raw, frames)
            except BaseException:
                await pooled.invalidate()
                raise

    async def _insert(self, raw: Any, frames: Sequence[Frame]) -> None:
        """All of `frames`, or halves of them when something in them is refused."""
        rows: list[tuple[Any, ...]] = []
        contents: list[tuple[Any, ...]] = []
        try:
            for start in range(0, len(frames), SLICE):
                rows += [row(frame) for frame in frames[start : start + SLICE]]
                contents += [found for frame in frames[start : start + SLICE] for found in content_rows(frame)]
                await asyncio.sleep(0)
            async with raw.transaction():
                await raw.execute(_STAGE, timeout=TIMEOUT_S)
                await raw.copy_records_to_table("audit_stage", records=_paced(rows), columns=SHIPPED, timeout=TIMEOUT_S)
                if contents:
                    await raw.execute(_CONTENT_STAGE, timeout=TIMEOUT_S)
                    await raw.copy_records_to_table(
                        "audit_content_stage", records=contents, columns=CONTENT, timeout=TIMEOUT_S
                    )
                now = await raw.fetchval("SELECT clock_timestamp()", timeout=TIMEOUT_S)
                await raw.execute(_CONTENT_INSERT if contents else _INSERT, timeout=TIMEOUT_S)
            self._compare_clocks(now, rows)
        except _POISON as error:
            if len(frames) > 1:
                half = len(frames) // 2
                await self._insert(raw, frames[:half])
                await self._insert(raw, frames[half:])
            else:
                await self._quarantine(raw, frames[0], error)

    def _compare_clocks(self, now: datetime, rows: Sequence[tuple[Any, ...]]) -> None:
        self.skew_s = (self._clock.now() - now).total_seconds()
        limit = now + timedelta(seconds=SKEW_S)
        ahead = sum(1 for values in rows if values[_TS] > limit)
        if ahead:
            latest = max(values[_TS] for values in rows)
            log.error("%d audit records are dated up to %s, after Postgres' clock: a clock is wrong", ahead, latest)
        self.misdated += ahead

    async def _quarantine(self, raw: Any, frame: Frame, error: Exception) -> None:
        log.error("audit record %d of boot %s is quarantined: %s", frame.seq, frame.boot_id, type(error).__name__)
        reason = storable(f"{type(error).__name__}: {error}", 1000)
        await raw.execute(
            _QUARANTINE,
            self._node_id,
            frame.boot_id,
            frame.seq,
            frame.rec,
            frame.prev_hash,
            frame.hash,
            frame.side,
            reason,
            timeout=TIMEOUT_S,
        )
        # Also when the row was there already: the process may have ended between the two.
        await self._on_refused(frame, type(error).__name__)
        self.quarantined += 1


async def _paced(rows: Sequence[tuple[Any, ...]]) -> AsyncIterator[tuple[Any, ...]]:
    for place, values in enumerate(rows):
        if place % SLICE == SLICE - 1:
            await asyncio.sleep(0)
        yield values


async def count_refused(engine: AsyncEngine) -> int:
    """Rows in `audit_quarantine`, whoever put them there; 10,000 stands for any number beyond."""
    async with engine.connect() as connection:
        return int((await connection.exec_driver_sql(_REFUSED)).scalar_one())
