"""Files of callers in Postgres: written and read chunk by chunk, so that none is ever whole in memory.

Each chunk is encrypted by itself where content keys exist. Nobody but the owner finds a file: anything else is 404.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.batches.database import Database
from gateway.batches.results import unrun_line
from gateway.batches.rows import file_of, sealed_of
from gateway.batches.tables import batch, batch_line, stored_chunk, stored_file
from gateway.batches.values import Owner, Sealer, StoredFile
from gateway.errors import Conflict, InvalidRequest, NotFound, RequestTooLarge
from gateway.flow.context import Clock, IdSource
from gateway.settings import BatchSettings

CHUNK = 256 * 1024
RESULTS_A_READ = 100
_OWNED = (stored_file.c.tenant, stored_file.c.issuer, stored_file.c.subject)


class FileStore:
    def __init__(
        self, database: Database, sealer: Sealer, settings: BatchSettings, clock: Clock, ids: IdSource
    ) -> None:
        self._database, self._sealer, self._settings = database, sealer, settings
        self._clock, self._ids = clock, ids

    # ---------------------------------------------------------------------------------------------- writing

    def new(self, owner: Owner, purpose: str) -> StoredFile:
        """A file that nobody has stored yet."""
        now = self._clock.now()
        return StoredFile(f"file-{self._ids.uuid7().hex}", owner, purpose, "", 0, 0, now, now + self._longest)

    @property
    def _longest(self) -> timedelta:
        return timedelta(days=self._settings.retention_days)

    async def begin(self, file: StoredFile) -> None:
        """Raises `RequestTooLarge` for one file too many of its owner."""
        async with self._database.transaction() as connection:
            count = sa.select(sa.func.count()).select_from(stored_file).where(*_of(file.owner))
            if (await connection.execute(count)).scalar_one() >= self._settings.max_files_per_owner:
                raise _full(f"You have {self._settings.max_files_per_owner} files.")
            await insert_file(connection, file, ready=False)

    async def append(self, file: StoredFile, number: int, content: bytes, so_far: tuple[int, int]) -> None:
        """The next chunk, of `CHUNK` bytes unless it is the last. `so_far`: bytes and lines with it.

        Raises `RequestTooLarge` for what the owner has no room for.
        """
        sealed = self._sealer.seal(content, f"{file.id}/{number}")
        async with self._database.transaction() as connection:
            await connection.execute(
                sa.insert(stored_chunk).values(
                    file_id=file.id, number=number, content=sealed.content, key_id=sealed.key_id, salt=sealed.salt
                )
            )
            await connection.execute(
                sa.update(stored_file).where(stored_file.c.id == file.id).values(bytes=so_far[0], lines=so_far[1])
            )
            await self.require_room(connection, file.owner)

    async def require_room(self, connection: AsyncConnection, owner: Owner) -> None:
        """Raises `RequestTooLarge` where the owner's files hold too much; results of batches are files too."""
        held = sa.select(sa.func.coalesce(sa.func.sum(stored_file.c.bytes), 0)).where(*_of(owner))
        if (await connection.execute(held)).scalar_one() > self._settings.max_bytes_per_owner:
            raise _full(f"Your files hold more than {self._settings.max_bytes_per_owner} bytes together.")

    async def finish(self, file: StoredFile, filename: str, lines: int, keep: timedelta | None) -> StoredFile:
        """All of it is here. It is kept for as long as asked, never longer than the setting says."""
        expires = file.created_at + min(self._longest if keep is None else keep, self._longest)
        async with self._database.transaction() as connection:
            written = (
                sa.update(stored_file)
                .where(stored_file.c.id == file.id)
                .values(ready=True, filename=filename, lines=lines, expires_at=expires)
            )
            return file_of((await connection.execute(written.returning(stored_file))).one())

    async def abandon(self, file: StoredFile) -> None:
        """Forget an upload that came to nothing; one that was finished stays."""
        async with self._database.transaction() as connection:
            unfinished = (stored_file.c.id == file.id) & ~stored_file.c.ready
            await connection.execute(sa.delete(stored_file).where(unfinished))

    # ---------------------------------------------------------------------------------------------- reading

    async def get(self, owner: Owner, file_id: str, *, param: str | None = None) -> StoredFile:
        """Raises `NotFound`, also for the files of others."""
        async with self._database.transaction() as connection:
            query = sa.select(stored_file).where(*_of(owner), *self._alive(), stored_file.c.id == file_id)
            row = (await connection.execute(query)).first()
        if row is None:
            raise unknown_file(param)
        return file_of(row)

    async def page(
        self, owner: Owner, *, after: str | None, limit: int, ascending: bool, purpose: str | None
    ) -> Sequence[StoredFile]:
        query = sa.select(stored_file).where(*_of(owner), *self._alive())
        if purpose is not None:
            query = query.where(stored_file.c.purpose == purpose)
        if after is not None:
            query = query.where(stored_file.c.id > after if ascending else stored_file.c.id < after)
        query = query.order_by(stored_file.c.id if ascending else stored_file.c.id.desc()).limit(limit)
        async with self._database.transaction() as connection:
            return [file_of(row) for row in await connection.execute(query)]

    async def content(self, file: StoredFile) -> AsyncIterator[bytes]:
        """All of it in pieces; each is read in a transaction of its own, however slow the reader is."""
        if file.batch_id is not None:
            async for piece in self._results(file, file.batch_id):
                yield piece
            return
        for number in range(-(-file.bytes // CHUNK)):
            yield await self._chunk(file.id, number)

    async def read(self, file_id: str, start: int, size: int) -> bytes:
        """A part of a file. Raises `NotFound` where it is not there any more."""
        first, last = start // CHUNK, (start + size - 1) // CHUNK
        joined = b"".join([await self._chunk(file_id, number) for number in range(first, last + 1)])
        return joined[start - first * CHUNK :][:size]

    async def _chunk(self, file_id: str, number: int) -> bytes:
        query = sa.select(stored_chunk.c.content, stored_chunk.c.key_id, stored_chunk.c.salt).where(
            stored_chunk.c.file_id == file_id, stored_chunk.c.number == number
        )
        async with self._database.transaction() as connection:
            row = (await connection.execute(query)).first()
        if row is None:
            raise unknown_file()
        return self._sealer.open(sealed_of(*row), f"{file_id}/{number}")

    async def _results(self, file: StoredFile, batch_id: str) -> AsyncIterator[bytes]:
        """The lines of a batch that this file holds, in the order of its input."""
        async with self._database.transaction() as connection:
            query = sa.select(batch.c.status, batch.c.output_file_id).where(batch.c.id == batch_id)
            row = (await connection.execute(query)).first()
        if row is None:
            raise unknown_file()
        states = ("done",) if row.output_file_id == file.id else ("failed", "unrun")
        last = 0
        while True:
            query_lines = (
                sa.select(batch_line)
                .where(batch_line.c.batch_id == batch_id, batch_line.c.number > last, batch_line.c.state.in_(states))
                .order_by(batch_line.c.number)
                .limit(RESULTS_A_READ)
            )
            async with self._database.transaction() as connection:
                rows = (await connection.execute(query_lines)).all()
            for line in rows:
                if line.state == "unrun":
                    yield unrun_line(batch_id, line.number, line.custom_id, row.status)
                elif line.result is not None:
                    sealed = sealed_of(line.result, line.key_id, line.salt)
                    yield self._sealer.open(sealed, f"{batch_id}/{line.number}")
            if len(rows) < RESULTS_A_READ:
                return
            last = rows[-1].number

    # -------------------------------------------------------------------------------------------- removing

    async def delete(self, owner: Owner, file_id: str) -> None:
        """Raises `NotFound`, or `Conflict` (409 `file_in_use`) while a batch still reads it."""
        file = await self.get(owner, file_id)
        async with self._database.transaction() as connection:
            reading = sa.select(batch.c.id).where(batch.c.input_file_id == file_id, batch.c.ended_at.is_(None))
            busy = (await connection.execute(reading)).scalars().first()
            if busy is not None:
                raise Conflict(
                    "A batch that has not ended reads this file.",
                    code="file_in_use",
                    param="file_id",
                    hint=f"cancel `{busy}` first, or wait for its end",
                )
            await delete_files(connection, [file])

    async def expired(self, limit: int) -> Sequence[StoredFile]:
        """Files whose time is over, and uploads that never ended; those that an open batch reads wait for its end."""
        now = self._clock.now()
        read = sa.select(batch.c.input_file_id).where(batch.c.ended_at.is_(None))
        abandoned = ~stored_file.c.ready & (stored_file.c.created_at < now - timedelta(hours=1))
        query = (
            sa.select(stored_file)
            .where((stored_file.c.expires_at < now) | abandoned, stored_file.c.id.not_in(read))
            .limit(limit)
        )
        async with self._database.transaction() as connection:
            return [file_of(row) for row in await connection.execute(query)]

    async def remove(self, files: Sequence[StoredFile]) -> None:
        async with self._database.transaction() as connection:
            await delete_files(connection, files)

    def _alive(self) -> tuple[sa.ColumnElement[bool], ...]:
        return stored_file.c.ready, stored_file.c.expires_at > self._clock.now()


def _of(owner: Owner) -> tuple[sa.ColumnElement[bool], ...]:
    return tuple(column == owner.columns[column.name] for column in _OWNED)


async def insert_file(connection: AsyncConnection, file: StoredFile, *, ready: bool) -> None:
    values: Mapping[str, Any] = {
        **file.owner.columns,
        "id": file.id,
        "purpose": file.purpose,
        "filename": file.filename,
        "bytes": file.bytes,
        "lines": file.lines,
        "batch_id": file.batch_id,
        "created_at": file.created_at,
        "expires_at": file.expires_at,
    }
    await connection.execute(sa.insert(stored_file).values(**values, ready=ready))


async def delete_files(connection: AsyncConnection, files: Sequence[StoredFile]) -> None:
    """With what they hold: chunks go with the file, and so do the lines of an ended batch."""
    for file in files:
        if file.batch_id is not None:
            of = sa.select(batch.c.output_file_id).where(batch.c.id == file.batch_id)
            states = ("done",) if (await connection.execute(of)).scalar() == file.id else ("failed", "unrun")
            held = (batch_line.c.batch_id == file.batch_id) & batch_line.c.state.in_(states)
            await connection.execute(sa.delete(batch_line).where(held))
    await connection.execute(sa.delete(stored_file).where(stored_file.c.id.in_([file.id for file in files])))


def unknown_file(param: str | None = "file_id") -> NotFound:
    return NotFound(
        "There is no such file of yours.", code="file_not_found", param=param, hint="list yours with GET /v1/files"
    )


def _full(message: str) -> RequestTooLarge:
    return RequestTooLarge(
        message,
        code="file_quota_exceeded",
        param="file",
        hint="delete files that you no longer need",
        headers={"connection": "close"},
    )


def empty_file() -> InvalidRequest:
    return InvalidRequest("The file is empty.", code="empty_file", param="file")
