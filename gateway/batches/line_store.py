"""The lines of batches in Postgres: leased by one node at a time, answered at most once.

A line belongs to who holds its lease. The lease is renewed while the line runs; of a node that has died it runs out,
and another node takes the line. A result is written only by the holder, in one transaction with the state and the
counts of the batch: who was thought dead and comes back late writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID

import sqlalchemy as sa

from gateway.batches.database import Database
from gateway.batches.rows import batch_of
from gateway.batches.tables import batch, batch_line
from gateway.batches.values import LeasedLine, Sealer, Status
from gateway.settings import BatchSettings

BATCHES_A_LOOK = 16
_NOW = sa.func.clock_timestamp()
"""Leases are on the clock of the database, which all nodes share."""


class LineStore:
    def __init__(self, database: Database, sealer: Sealer, settings: BatchSettings) -> None:
        self._database, self._sealer = database, sealer
        self._lease = timedelta(seconds=settings.lease_s)

    async def claim(self, lease_id: UUID) -> LeasedLine | None:
        """The next line of the batch that has waited longest for its turn; None when there is nothing to do."""
        async with self._database.transaction() as connection:
            ready = (batch.c.resume_at.is_(None) | (batch.c.resume_at <= _NOW)) & (batch.c.expires_at > _NOW)
            turns = (
                sa.select(batch.c.id)
                .where(batch.c.status == "in_progress", ready)
                .order_by(batch.c.claimed_at.asc().nulls_first(), batch.c.id)
                .limit(BATCHES_A_LOOK)
            )
            for batch_id in (await connection.execute(turns)).scalars().all():
                # The batch before its line, as everybody locks them.
                turn = sa.update(batch).where(batch.c.id == batch_id).values(claimed_at=_NOW).returning(batch)
                row = (await connection.execute(turn)).first()
                line = (await connection.execute(self._take(batch_id, lease_id))).first()
                if row is not None and line is not None:
                    return LeasedLine(batch_of(row), line.number, line.custom_id, line.start, line.size, line.attempts)
        return None

    def _take(self, batch_id: str, lease_id: UUID) -> sa.UpdateBase:
        free = (batch_line.c.state == "pending") | (batch_line.c.lease_until < _NOW)
        one = (
            sa.select(batch_line.c.number)
            .where(batch_line.c.batch_id == batch_id, batch_line.c.state.in_(("pending", "running")), free)
            .order_by(batch_line.c.number)
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        return (
            sa.update(batch_line)
            .where(batch_line.c.batch_id == batch_id, batch_line.c.number == one.scalar_subquery())
            .values(
                state="running",
                lease_id=lease_id,
                lease_until=_NOW + self._lease,
                attempts=batch_line.c.attempts + 1,
            )
            .returning(batch_line)
        )

    async def finish(self, line: LeasedLine, lease_id: UUID, result: bytes, *, done: bool) -> int | None:
        """Keep the result. Lines of the batch that have no result yet, or None where the lease was lost: then nothing
        is kept, because somebody else answers the line."""
        sealed = self._sealer.seal(result, f"{line.batch.id}/{line.number}")
        async with self._database.transaction() as connection:
            locked = sa.select(batch.c.id).where(batch.c.id == line.batch.id).with_for_update()
            await connection.execute(locked)
            kept = (
                sa.update(batch_line)
                .where(*_held(line, lease_id))
                .values(
                    state="done" if done else "failed",
                    lease_id=None,
                    lease_until=None,
                    result=sealed.content,
                    result_bytes=len(result),
                    key_id=sealed.key_id,
                    salt=sealed.salt,
                )
            )
            if (await connection.execute(kept)).rowcount == 0:
                return None
            counter = batch.c.completed if done else batch.c.failed
            counted = (
                sa.update(batch)
                .where(batch.c.id == line.batch.id)
                .values({counter: counter + 1})
                .returning(batch.c.total - batch.c.completed - batch.c.failed)
            )
            left: int = (await connection.execute(counted)).scalar_one()
            return left

    async def give_back(self, line: LeasedLine, lease_id: UUID, *, counts: bool) -> None:
        """Let any node run it. Without `counts` it was as if it had not been tried."""
        async with self._database.transaction() as connection:
            values: dict[str, object] = {"state": "pending", "lease_id": None, "lease_until": None}
            if not counts:
                values["attempts"] = batch_line.c.attempts - 1
            await connection.execute(sa.update(batch_line).where(*_held(line, lease_id)).values(**values))

    async def pause(self, batch_id: str, pause_s: float) -> None:
        """Start no line of the batch for so long; a longer pause that is set stays."""
        until = _NOW + timedelta(seconds=pause_s)
        async with self._database.transaction() as connection:
            change = sa.update(batch).where(batch.c.id == batch_id)
            await connection.execute(change.values(resume_at=sa.func.greatest(batch.c.resume_at, until)))

    async def renew(self, lease_ids: Sequence[UUID]) -> Mapping[UUID, Status]:
        """The leases that are still held, each with the status of its batch."""
        async with self._database.transaction() as connection:
            renewed = (
                sa.update(batch_line)
                .where(batch_line.c.lease_id.in_(lease_ids), batch_line.c.batch_id == batch.c.id)
                .values(lease_until=_NOW + self._lease)
                .returning(batch_line.c.lease_id, batch.c.status)
            )
            return {UUID(int=lease.int): status for lease, status in await connection.execute(renewed)}

    async def waiting(self) -> tuple[int, int]:
        """(open batches, lines of them that wait)"""
        async with self._database.transaction() as connection:
            opened = sa.select(sa.func.count()).select_from(batch).where(batch.c.ended_at.is_(None))
            lines = sa.select(sa.func.count()).select_from(batch_line).where(batch_line.c.state == "pending")
            return (await connection.execute(opened)).scalar_one(), (await connection.execute(lines)).scalar_one()


def _held(line: LeasedLine, lease_id: UUID) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        batch_line.c.batch_id == line.batch.id,
        batch_line.c.number == line.number,
        batch_line.c.lease_id == lease_id,
    )
