"""The end of a batch: its last status, and the files that its results are read by. One transaction of the caller's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.batches.file_store import insert_file
from gateway.batches.results import unrun_bytes
from gateway.batches.rows import batch_of
from gateway.batches.tables import batch, batch_line
from gateway.batches.values import Batch, Problem, Status, StoredFile
from gateway.flow.context import IdSource

LINES_A_READ = 1000


async def end_batch(
    connection: AsyncConnection,
    ended: Batch,
    status: Status,
    now: datetime,
    ids: IdSource,
    problems: Sequence[Problem] = (),
) -> Batch:
    """The row is locked by the caller. Lines that never ran are told in the error file; their leases are void."""
    mine = batch_line.c.batch_id == ended.id
    left = mine & batch_line.c.state.in_(("pending", "running"))
    unrun = await connection.execute(
        sa.update(batch_line).where(left).values(state="unrun", lease_id=None, lease_until=None)
    )
    held = sa.select(
        sa.func.coalesce(sa.func.sum(batch_line.c.result_bytes).filter(batch_line.c.state == "done"), 0),
        sa.func.coalesce(sa.func.sum(batch_line.c.result_bytes).filter(batch_line.c.state == "failed"), 0),
        sa.func.count().filter(batch_line.c.state == "done"),
        sa.func.count().filter(batch_line.c.state != "done"),
    ).where(mine)
    output_bytes, error_bytes, outputs, errors = (await connection.execute(held)).one()
    if unrun.rowcount:
        error_bytes += await _unrun_bytes(connection, ended.id, status)
    output = await _file(connection, ended, ids, now, "output", output_bytes, outputs)
    error = await _file(connection, ended, ids, now, "error", error_bytes, errors)
    at = int(now.timestamp())
    times = {**ended.times, **({"finalizing": at} if status == "completed" else {}), status: at}
    change = (
        sa.update(batch)
        .where(batch.c.id == ended.id)
        .values(
            status=status,
            times=times,
            ended_at=now,
            output_file_id=output,
            error_file_id=error,
            errors=[asdict(problem) for problem in problems],
        )
    )
    return batch_of((await connection.execute(change.returning(batch))).one())


async def _file(
    connection: AsyncConnection, ended: Batch, ids: IdSource, now: datetime, what: str, size: int, lines: int
) -> str | None:
    """A file without chunks, whose content is the results themselves; none where there are no such results."""
    if lines == 0:
        return None
    file = StoredFile(
        id=f"file-{ids.uuid7().hex}",
        owner=ended.owner,
        purpose="batch_output",
        filename=f"{ended.id}_{what}.jsonl",
        bytes=size,
        lines=lines,
        created_at=now,
        expires_at=now + timedelta(seconds=ended.keep_s),
        batch_id=ended.id,
    )
    await insert_file(connection, file, ready=True)
    return file.id


async def _unrun_bytes(connection: AsyncConnection, batch_id: str, status: str) -> int:
    size, last = 0, 0
    while True:
        query = (
            sa.select(batch_line.c.number, batch_line.c.custom_id)
            .where(batch_line.c.batch_id == batch_id, batch_line.c.number > last, batch_line.c.state == "unrun")
            .order_by(batch_line.c.number)
            .limit(LINES_A_READ)
        )
        rows = (await connection.execute(query)).all()
        size += sum(unrun_bytes(batch_id, row.number, row.custom_id, status) for row in rows)
        if len(rows) < LINES_A_READ:
            return size
        last = rows[-1].number
