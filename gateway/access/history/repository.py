"""All SQL of the policy history. Moves versions in and out of Postgres; decides and compiles nothing.

A write is one transaction: the version, the head (compare and swap), the idempotency key and the notification.
Everything that means "the database cannot be used now" comes out as `Unavailable` (503 `policy_unavailable`).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any
from uuid import UUID

import asyncpg
from sqlalchemy import func, insert, select, text, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.access.history.tables import policy_head, policy_proposal, policy_version
from gateway.access.history.versions import (
    AlreadyDecided,
    Author,
    NewVersion,
    Proposal,
    StaleVersion,
    StoredVersion,
)
from gateway.errors import Unavailable
from gateway.storage.idempotency import KeyTaken, RequestKey, remember, replayed_resource

CHANNEL = "esclusa_policy"
"""Notified with the new version's number when a write commits."""
SEED_LOCK = 0x45534C55504F4C49
"""Advisory lock of the first write: replicas that start together seed once."""


VERSION, PROPOSAL = "version ", "proposal "
"""What a remembered write led to, as it is remembered."""


class PolicyRepository:
    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    @property
    def database_url(self) -> str:
        """With the password; for the listening connection only."""
        return self._engine.url.render_as_string(hide_password=False)

    async def current_number(self) -> int | None:
        """The version in force, or None in an empty database. What the poll asks."""
        async with self._connection() as connection:
            found: int | None = await connection.scalar(select(policy_head.c.version))
            return found

    async def current(self) -> StoredVersion | None:
        query = select(policy_version).join(policy_head, policy_head.c.version == policy_version.c.version)
        async with self._connection() as connection:
            row = (await connection.execute(query)).mappings().first()
        return _stored(row) if row else None

    async def get(self, version: int) -> StoredVersion | None:
        async with self._connection() as connection:
            query = select(policy_version).where(policy_version.c.version == version)
            row = (await connection.execute(query)).mappings().first()
        return _stored(row) if row else None

    async def page(self, *, before: int | None, limit: int) -> tuple[list[StoredVersion], int]:
        """Newest first, versions below `before`; with the number of all versions."""
        query = select(policy_version).order_by(policy_version.c.version.desc()).limit(limit)
        if before is not None:
            query = query.where(policy_version.c.version < before)
        async with self._connection() as connection:
            rows = (await connection.execute(query)).mappings().all()
            total = await connection.scalar(select(func.count()).select_from(policy_version))
        return [_stored(row) for row in rows], total or 0

    async def seed(self, content: NewVersion) -> StoredVersion:
        """Write version 1 unless there is one already; returns what is in force afterwards."""
        async with self._transaction() as connection:
            await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": SEED_LOCK})
            if await connection.scalar(select(policy_head.c.version)) is None:
                await connection.execute(insert(policy_version).values(version=1, **_content(content)))
                await connection.execute(insert(policy_head).values(id=1, version=1))
                await _notify(connection, 1)
        stored = await self.current()
        if stored is None:
            raise Unavailable("The policy is not available.", code="policy_unavailable", detail="seeding left no head")
        return stored

    async def append(
        self, content: NewVersion, *, expected: int, key: RequestKey | None = None, proposal: UUID | None = None
    ) -> StoredVersion:
        """Write version `expected + 1` and put it in force. Of several writers with one `expected`, one wins.

        With `proposal`, that proposal is marked approved in the same transaction.
        Raises `StaleVersion`, `AlreadyDecided`, `KeyTaken`, `Unavailable`.
        """
        version = expected + 1
        async with self._transaction() as connection:
            locked = await connection.scalar(select(policy_head.c.version).with_for_update())
            if locked != expected:
                raise StaleVersion
            await connection.execute(insert(policy_version).values(version=version, **_content(content)))
            await connection.execute(update(policy_head).values(version=version))
            approver = content.approver if proposal is not None else None
            if proposal is not None and approver is not None:
                decided = await _decide(connection, proposal, "approved", approver, version)
                if not decided:
                    raise AlreadyDecided
            if key is not None:
                await remember(connection, key, f"{VERSION}{version}")
            await _notify(connection, version)
        stored = await self.get(version)
        if stored is None:
            raise Unavailable("The policy is not available.", code="policy_unavailable", detail="version vanished")
        return stored

    async def propose(
        self, proposal_id: UUID, content: NewVersion, *, base: int, key: RequestKey | None = None
    ) -> Proposal:
        values = _content(content)
        for column in [name for name in values if name.startswith("approver_")]:
            del values[column]
        async with self._transaction() as connection:
            await connection.execute(insert(policy_proposal).values(id=proposal_id, base_version=base, **values))
            if key is not None:
                await remember(connection, key, f"{PROPOSAL}{proposal_id}")
            query = select(policy_proposal).where(policy_proposal.c.id == proposal_id)
            row = (await connection.execute(query)).mappings().one()
        return _proposal(row)

    async def proposal(self, proposal_id: UUID) -> Proposal | None:
        async with self._connection() as connection:
            query = select(policy_proposal).where(policy_proposal.c.id == proposal_id)
            row = (await connection.execute(query)).mappings().first()
        return _proposal(row) if row else None

    async def proposals(self, *, state: str | None, limit: int) -> list[Proposal]:
        query = select(policy_proposal).order_by(policy_proposal.c.id.desc()).limit(limit)
        if state is not None:
            query = query.where(policy_proposal.c.state == state)
        async with self._connection() as connection:
            rows = (await connection.execute(query)).mappings().all()
        return [_proposal(row) for row in rows]

    async def reject(self, proposal_id: UUID, by: Author) -> Proposal | None:
        """None when it was not pending any more."""
        async with self._transaction() as connection:
            done = await _decide(connection, proposal_id, "rejected", by, None)
        return await self.proposal(proposal_id) if done else None

    async def replayed(self, key: RequestKey) -> int | UUID | None:
        """The version, or the id of the proposal, that the same request led to before. Raises `Conflict`."""
        async with self._connection() as connection:
            resource = await replayed_resource(connection, key)
        if resource is None:
            return None
        kind, _, name = resource.partition(" ")
        return UUID(name) if f"{kind} " == PROPOSAL else int(name)

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection]:
        with _unavailable_when_down():
            async with self._engine.connect() as connection:
                yield connection

    @contextlib.asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection]:
        with _unavailable_when_down():
            async with self._engine.begin() as connection:
                yield connection


@contextlib.contextmanager
def _unavailable_when_down() -> Iterator[None]:
    try:
        yield
    except (StaleVersion, AlreadyDecided, KeyTaken):
        raise
    except (SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
        raise Unavailable(
            "The policy store cannot be reached.", code="policy_unavailable", detail=type(error).__name__
        ) from error


async def _notify(connection: AsyncConnection, version: int) -> None:
    await connection.execute(
        text("SELECT pg_notify(:channel, :payload)"), {"channel": CHANNEL, "payload": str(version)}
    )


async def _decide(connection: AsyncConnection, proposal_id: UUID, state: str, by: Author, version: int | None) -> bool:
    statement = (
        update(policy_proposal)
        .where(policy_proposal.c.id == proposal_id, policy_proposal.c.state == "pending")
        .values(state=state, version=version, decided_at=func.clock_timestamp(), **_person("decided", by))
    )
    return (await connection.execute(statement)).rowcount == 1


def _content(content: NewVersion) -> dict[str, Any]:
    return {
        "source": content.source,
        "syntax": content.syntax,
        "sha256": content.sha256,
        "known_models": list(content.known_models),
        "reason": content.reason,
        "origin": content.origin,
        "restored_from": content.restored_from,
        **_person("author", content.author),
        "author_people": list(content.author.people),
        **(_person("approver", content.approver) if content.approver else {}),
    }


def _person(prefix: str, author: Author) -> dict[str, Any]:
    return {
        f"{prefix}_tenant": author.tenant,
        f"{prefix}_issuer": author.issuer,
        f"{prefix}_subject": author.subject,
        f"{prefix}_display": author.display,
    }


def _read_person(row: Mapping[str, Any], prefix: str) -> Author | None:
    if row[f"{prefix}_issuer"] is None:
        return None
    return Author(*(row[f"{prefix}_{part}"] for part in ("tenant", "issuer", "subject", "display")))


def _read_content(row: Mapping[str, Any], approver: Author | None) -> NewVersion:
    return NewVersion(
        source=row["source"],
        syntax=row["syntax"],
        sha256=row["sha256"],
        known_models=tuple(row["known_models"]),
        author=Author(
            row["author_tenant"],
            row["author_issuer"],
            row["author_subject"],
            row["author_display"],
            tuple(row["author_people"]),
        ),
        reason=row["reason"],
        origin=row["origin"],
        restored_from=row["restored_from"],
        approver=approver,
    )


def _stored(row: Mapping[Any, Any]) -> StoredVersion:
    return StoredVersion(row["version"], _read_content(row, _read_person(row, "approver")), row["created_at"])


def _proposal(row: Mapping[Any, Any]) -> Proposal:
    return Proposal(
        id=row["id"],
        base_version=row["base_version"],
        content=_read_content(row, None),
        created_at=row["created_at"],
        state=row["state"],
        decided_by=_read_person(row, "decided"),
        decided_at=row["decided_at"],
        version=row["version"],
    )
