"""From the spool to Postgres: exactly once, whatever stops in between.

COPY into a temporary table, `INSERT ... ON CONFLICT DO NOTHING`, commit, then the checkpoint, then delete the segment.
A row that Postgres refuses is found by halving and goes to `audit_quarantine`; an outage only makes records wait.
Knows the spool's files and one table; not requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import asyncpg
import orjson
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.audit.canonical import parse_json, storable
from gateway.audit.columns import CONTENT, SHIPPED, content_rows, row
from gateway.audit.group import Position
from gateway.audit.segment import Frame, Header, read_frames, read_header, segment_numbers, segment_path

log = logging.getLogger("esclusa.audit")

BATCH = 1024
BATCH_BYTES = 16 * 1024 * 1024
"""Encrypted content makes frames large: a batch ends with the frame that passes this."""
SLICE = 48
"""Rows prepared without letting the event loop run: about one millisecond."""
TIMEOUT_S = 15.0

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
_EXPIRE = "DELETE FROM audit_content WHERE expires_at < clock_timestamp()"
_QUARANTINE = """
INSERT INTO audit_quarantine (node_id, boot_id, node_seq, rec, prev_hash, hash, side, error)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING
"""


@dataclass(slots=True)
class Checkpoint:
    """How far a boot's folder has been shipped; kept in the folder."""

    number: int = 0
    offset: int = 0

    @classmethod
    def load(cls, folder: Path) -> Checkpoint:
        try:
            kept = parse_json((folder / "checkpoint").read_bytes())
            return cls(int(kept["number"]), int(kept["offset"]))
        except (OSError, ValueError, KeyError):
            # Shipping again from the start changes nothing: rows that are there already are left alone.
            return cls()

    def save(self, folder: Path) -> None:
        partial = folder / "checkpoint.new"
        partial.write_bytes(orjson.dumps({"number": self.number, "offset": self.offset}))
        partial.replace(folder / "checkpoint")


class BootReader:
    """Batches of frames of one boot's folder, up to a position (a live boot) or to the end (a dead one)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.checkpoint = Checkpoint.load(folder)
        self._headers: dict[int, Header | None] = {}

    def pending(self, upto: Position | None) -> bool:
        if upto is None:
            return any(True for _ in self._frames(None, 1)[0])
        return (self.checkpoint.number, self.checkpoint.offset) < (upto.number, upto.offset) and bool(
            self._frames(upto, 1)[0]
        )

    def batch(self, upto: Position | None, limit: int) -> tuple[list[Frame], Checkpoint]:
        """Up to `limit` frames and the checkpoint behind them. Reads files; microseconds from the page cache."""
        return self._frames(upto, limit)

    def advance(self, behind: Checkpoint) -> None:
        """Persist the checkpoint and delete the segments it has passed."""
        self.checkpoint = behind
        behind.save(self._folder)
        for number in segment_numbers(self._folder):
            if number < behind.number:
                segment_path(self._folder, number).unlink(missing_ok=True)
                self._headers.pop(number, None)

    def bytes_on_disk(self, *, but: int | None = None) -> int:
        return sum(
            segment_path(self._folder, number).stat().st_size
            for number in segment_numbers(self._folder)
            if number != but
        )

    def _frames(self, upto: Position | None, limit: int) -> tuple[list[Frame], Checkpoint]:
        frames: list[Frame] = []
        size = 0
        behind = Checkpoint(self.checkpoint.number, self.checkpoint.offset)
        numbers = [number for number in segment_numbers(self._folder) if number >= behind.number]
        for place, number in enumerate(numbers):
            if upto is not None and number > upto.number:
                break
            header = self._header(number)
            if number > behind.number:
                behind = Checkpoint(number, 0)
            if header is None:
                continue
            bound = next((h.first_seq for h in map(self._header, numbers[place + 1 :]) if h is not None), None)
            end = upto.offset if upto is not None and number == upto.number else None
            source = read_frames(segment_path(self._folder, number), header, behind.offset, end=end)
            for frame in islice(source, limit - len(frames)):
                if bound is not None and frame.seq >= bound:
                    break
                frames.append(frame)
                behind = Checkpoint(number, frame.end)
                size += len(frame.rec) + len(frame.side)
                if size >= BATCH_BYTES:
                    break
            if len(frames) >= limit or size >= BATCH_BYTES:
                break
        return frames, behind

    def _header(self, number: int) -> Header | None:
        if self._headers.get(number) is None:
            self._headers[number] = read_header(segment_path(self._folder, number))
        return self._headers[number]


class Shipper:
    """Ships batches of one process's folders through one pooled connection at a time."""

    def __init__(self, engine: AsyncEngine, node_id: str) -> None:
        self._engine = engine
        self._node_id = node_id
        self.shipped = 0
        self.quarantined = 0

    async def ship(self, reader: BootReader, upto: Position | None) -> datetime | None:
        """Ship everything up to the position. Returns the time of the last record shipped. Raises one of `OUTAGE`."""
        last: datetime | None = None
        while True:
            frames, behind = reader.batch(upto, BATCH)
            if not frames:
                if (behind.number, behind.offset) != (reader.checkpoint.number, reader.checkpoint.offset):
                    reader.advance(behind)
                return last
            async with asyncio.timeout(4 * TIMEOUT_S):
                await self._store(frames)
            reader.advance(behind)
            self.shipped += len(frames)
            last = _time_of(frames[-1]) or last

    async def keep_house(self, months_ahead: int = 3) -> None:
        """Partitions for what comes, and no content past its time."""
        async with self._engine.connect() as connection:
            await connection.exec_driver_sql(f"SELECT audit_ensure_partitions({int(months_ahead)})")
            await connection.exec_driver_sql(_EXPIRE)
            await connection.commit()

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
                await raw.execute(_CONTENT_INSERT if contents else _INSERT, timeout=TIMEOUT_S)
        except _POISON as error:
            if len(frames) > 1:
                half = len(frames) // 2
                await self._insert(raw, frames[:half])
                await self._insert(raw, frames[half:])
            else:
                await self._quarantine(raw, frames[0], error)

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
        self.quarantined += 1


async def _paced(rows: Sequence[tuple[Any, ...]]) -> AsyncIterator[tuple[Any, ...]]:
    for place, values in enumerate(rows):
        if place % SLICE == SLICE - 1:
            await asyncio.sleep(0)
        yield values


def _time_of(frame: Frame) -> datetime | None:
    try:
        return datetime.fromisoformat(parse_json(frame.rec)["ts"])
    except (ValueError, KeyError, TypeError):
        return None
