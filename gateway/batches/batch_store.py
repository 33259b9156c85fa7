"""Batches in Postgres: made, read and cancelled by their owner, judged and ended by any node.

Every change of status is one transaction that holds the batch's row, so that two nodes cannot both make it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.batches.database import Database
from gateway.batches.ending import end_batch
from gateway.batches.file_store import FileStore
from gateway.batches.input_lines import InputJudge
from gateway.batches.lifecycle import end_of
from gateway.batches.rows import batch_of
from gateway.batches.tables import batch, batch_line
from gateway.batches.values import FINAL, Batch, InputLine, Origin, Owner, Problem, principal_to_json
from gateway.errors import Conflict, GatewayError, InvalidRequest, NotFound, RateLimited
from gateway.flow.context import Clock, IdSource
from gateway.flow.values import Principal
from gateway.settings import BatchSettings

OPEN_A_LOOK = 1000
WINDOW = timedelta(hours=24)
_OWNED = (batch.c.tenant, batch.c.issuer, batch.c.subject)


@dataclass(frozen=True, slots=True)
class NewBatch:
    input_file_id: str
    endpoint: str
    metadata: Mapping[str, str]
    keep: timedelta | None = None
    """How long its results are to be kept."""


class BatchStore:
    def __init__(
        self,
        database: Database,
        files: FileStore,
        settings: BatchSettings,
        clock: Clock,
        ids: IdSource,
        parse: Callable[[bytes], Any],
        *,
        max_line_bytes: int,
    ) -> None:
        self._database, self._files, self._settings = database, files, settings
        self._clock, self._ids, self._parse, self._max_line_bytes = clock, ids, parse, max_line_bytes

    # ------------------------------------------------------------------------------------------ its owner

    async def create(self, principal: Principal, new: NewBatch, origin: Origin) -> Batch:
        """Raises `NotFound` for a file that is not the caller's, `RateLimited` for too many open batches."""
        owner, now = Owner.of(principal), self._clock.now()
        file = await self._files.get(owner, new.input_file_id, param="input_file_id")
        if file.purpose != "batch":
            raise InvalidRequest(
                "The input file must have the purpose `batch`.", code="invalid_value", param="input_file_id"
            )
        longest = timedelta(days=self._settings.retention_days)
        keep = longest if new.keep is None else min(new.keep, longest)
        made = {
            **owner.columns,
            "id": f"batch_{self._ids.uuid7().hex}",
            "input_file_id": file.id,
            "endpoint": new.endpoint,
            "status": "validating",
            "metadata": dict(new.metadata),
            "errors": [],
            "principal": principal_to_json(principal),
            "origin": asdict(origin),
            "keep_s": int(keep.total_seconds()),
            "created_at": now,
            "expires_at": now + WINDOW,
            "times": {},
        }
        async with self._database.transaction() as connection:
            lock = sa.func.pg_advisory_xact_lock(sa.func.hashtextextended("\n".join(owner.columns.values()), 11))
            await connection.execute(sa.select(lock))
            opened = sa.func.count().filter(batch.c.ended_at.is_(None))
            count = sa.select(sa.func.count(), opened).where(*_of(owner))
            known, going = (await connection.execute(count)).one()
            if going >= self._settings.max_open_per_owner:
                raise _too_many(f"You have {going} batches that have not ended.", "wait for one to end, or cancel one")
            if known >= self._settings.max_files_per_owner:
                days = self._settings.retention_days
                raise _too_many(f"You have made {known} batches in {days} days.", "put more requests into a batch")
            await self._files.require_room(connection, owner)
            return batch_of((await connection.execute(sa.insert(batch).values(**made).returning(batch))).one())

    async def get(self, owner: Owner, batch_id: str) -> Batch:
        """Raises `NotFound`, also for the batches of others."""
        async with self._database.transaction() as connection:
            row = (await connection.execute(sa.select(batch).where(*_of(owner), batch.c.id == batch_id))).first()
        if row is None:
            raise unknown_batch()
        return batch_of(row)

    async def page(self, owner: Owner, *, after: str | None, limit: int) -> Sequence[Batch]:
        """Newest first."""
        query = sa.select(batch).where(*_of(owner))
        if after is not None:
            query = query.where(batch.c.id < after)
        async with self._database.transaction() as connection:
            return [batch_of(row) for row in await connection.execute(query.order_by(batch.c.id.desc()).limit(limit))]

    async def cancel(self, owner: Owner, batch_id: str) -> Batch:
        """What runs is stopped within seconds; what has run is kept. Raises `NotFound` or `Conflict`."""
        async with self._database.transaction() as connection:
            query = sa.select(batch).where(*_of(owner), batch.c.id == batch_id).with_for_update()
            row = (await connection.execute(query)).first()
            if row is None:
                raise unknown_batch()
            found = batch_of(row)
            if found.status in ("cancelling", "cancelled"):
                return found
            if found.status in FINAL:
                raise Conflict(f"The batch has ended; it is `{found.status}`.", code="batch_ended", param="batch_id")
            if found.status == "validating":
                return await end_batch(connection, found, "cancelled", self._clock.now(), self._ids)
            return await self._enter(connection, found, "cancelling")

    # ------------------------------------------------------------------------------------------- any node

    async def judge_next(self) -> bool:
        """Read the input of one batch that waits for it. False when none does.

        One transaction: a node that dies in it leaves the batch as it was.
        """
        async with self._database.transaction() as connection:
            query = sa.select(batch).where(batch.c.status == "validating").order_by(batch.c.id).limit(1)
            row = (await connection.execute(query.with_for_update(skip_locked=True))).first()
            if row is None:
                return False
            found = batch_of(row)
            reader = InputJudge(
                found.endpoint,
                self._parse,
                max_line_bytes=self._max_line_bytes,
                max_lines=self._settings.max_lines,
            )
            try:
                file = await self._files.get(found.owner, found.input_file_id)
                async for piece in self._files.content(file):
                    await _insert(connection, found.id, await asyncio.to_thread(reader.feed, piece))
                await _insert(connection, found.id, reader.end())
            except NotFound:
                reader.problems.append(Problem("file_not_found", "The input file is not there any more."))
            except GatewayError as error:
                if error.code == "database_unavailable":
                    raise
                reader.problems.append(Problem(error.code, error.message))
            if reader.problems:
                await connection.execute(sa.delete(batch_line).where(batch_line.c.batch_id == found.id))
                await end_batch(connection, found, "failed", self._clock.now(), self._ids, reader.problems)
            else:
                await self._enter(connection, found, "in_progress", total=reader.count, model=reader.model)
            return True

    async def settle(self, batch_id: str) -> Batch | None:
        """End a batch that has nothing left to do, or no time. None when it is gone or held by another node."""
        async with self._database.transaction() as connection:
            query = sa.select(batch).where(batch.c.id == batch_id).with_for_update(skip_locked=True)
            row = (await connection.execute(query)).first()
            if row is None:
                return None
            found = batch_of(row)
            alive = (batch_line.c.state == "running") & (batch_line.c.lease_until >= sa.func.clock_timestamp())
            counts = sa.select(sa.func.count().filter(~alive), sa.func.count().filter(alive)).where(
                batch_line.c.batch_id == batch_id, batch_line.c.state.in_(("pending", "running"))
            )
            waiting, running = (await connection.execute(counts)).one()
            now = self._clock.now()
            status = end_of(found.status, expired=found.expires_at <= now, waiting=waiting, running=running)
            return found if status is None else await end_batch(connection, found, status, now, self._ids)

    async def fail(self, batch_id: str, problem: Problem) -> None:
        """Its caller may not call any more."""
        async with self._database.transaction() as connection:
            query = sa.select(batch).where(batch.c.id == batch_id, batch.c.ended_at.is_(None)).with_for_update()
            row = (await connection.execute(query)).first()
            if row is not None:
                await end_batch(connection, batch_of(row), "failed", self._clock.now(), self._ids, [problem])

    async def opened(self) -> Sequence[Batch]:
        """All that have not ended."""
        query = sa.select(batch).where(batch.c.ended_at.is_(None)).order_by(batch.c.id).limit(OPEN_A_LOOK)
        async with self._database.transaction() as connection:
            return [batch_of(row) for row in await connection.execute(query)]

    async def to_settle(self) -> Sequence[str]:
        """Batches that may have ended without anybody noticing: cancelled, out of time, or the node died."""
        over = (
            (batch.c.status == "cancelling")
            | (batch.c.expires_at <= self._clock.now())
            | ((batch.c.status == "in_progress") & (batch.c.completed + batch.c.failed >= batch.c.total))
        )
        async with self._database.transaction() as connection:
            query = sa.select(batch.c.id).where(batch.c.ended_at.is_(None), over).limit(100)
            return list((await connection.execute(query)).scalars())

    async def forget_old(self) -> int:
        """Remove batches that ended so long ago that their results are gone too."""
        old = batch.c.ended_at < self._clock.now() - timedelta(days=self._settings.retention_days)
        async with self._database.transaction() as connection:
            return (await connection.execute(sa.delete(batch).where(old))).rowcount

    async def _enter(self, connection: AsyncConnection, found: Batch, status: str, **more: Any) -> Batch:
        times = {**found.times, status: int(self._clock.now().timestamp())}
        change = sa.update(batch).where(batch.c.id == found.id).values(status=status, times=times, **more)
        return batch_of((await connection.execute(change.returning(batch))).one())


def _of(owner: Owner) -> tuple[sa.ColumnElement[bool], ...]:
    return tuple(column == owner.columns[column.name] for column in _OWNED)


def _too_many(message: str, hint: str) -> RateLimited:
    return RateLimited(message, code="too_many_batches", hint=hint, headers={"x-should-retry": "false"})


async def _insert(connection: AsyncConnection, batch_id: str, lines: Sequence[InputLine]) -> None:
    if lines:
        rows = [{"batch_id": batch_id, "state": "pending", **asdict(line)} for line in lines]
        await connection.execute(sa.insert(batch_line), rows)


def unknown_batch() -> NotFound:
    return NotFound(
        "There is no such batch of yours.",
        code="batch_not_found",
        param="batch_id",
        hint="list yours with GET /v1/batches",
    )
