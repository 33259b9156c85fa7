"""`Idempotency-Key`: the same request twice takes effect once. One table and one rule for every domain.

A change in the database remembers its key in its own transaction; a change outside it (an engine that is paused) does
so afterwards, through `IdempotencyStore`. Keys belong to a caller and are remembered for two days.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import asyncpg
from sqlalchemy import Column, DateTime, PrimaryKeyConstraint, Table, Text, delete, func, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.errors import Conflict, Unavailable
from gateway.storage.base import metadata

REMEMBERED = timedelta(days=2)

idempotent_request = Table(
    "idempotent_request",
    metadata,
    Column("tenant", Text, nullable=False),
    Column("issuer", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("request_sha256", Text, nullable=False),
    Column("resource", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    PrimaryKeyConstraint("tenant", "issuer", "subject", "key"),
)


class Caller(Protocol):
    @property
    def tenant(self) -> str: ...

    @property
    def issuer(self) -> str: ...

    @property
    def subject(self) -> str: ...


@dataclass(frozen=True, slots=True)
class RequestKey:
    """An `Idempotency-Key` of one caller, and the request it stands for."""

    caller: Caller
    key: str
    request_sha256: str


class KeyTaken(Exception):
    """Another request with this key was faster."""


def request_key(caller: Caller, key: str | None, *parts: object) -> RequestKey | None:
    """None without a key. `parts` are bytes, or frozen values whose `repr` is their whole meaning."""
    if key is None:
        return None
    return RequestKey(caller, key, hashlib.sha256(repr(tuple(map(_ordered, parts))).encode()).hexdigest())


async def remember(connection: AsyncConnection, request: RequestKey, resource: str) -> None:
    """In the transaction of the change. Raises `KeyTaken`."""
    who, table = request.caller, idempotent_request
    own = (table.c.tenant == who.tenant, table.c.issuer == who.issuer, table.c.subject == who.subject)
    await connection.execute(delete(table).where(*own, table.c.created_at < func.clock_timestamp() - REMEMBERED))
    statement = upsert(table).values(
        tenant=who.tenant,
        issuer=who.issuer,
        subject=who.subject,
        key=request.key,
        request_sha256=request.request_sha256,
        resource=resource,
    )
    done = await connection.execute(statement.on_conflict_do_nothing())
    if done.rowcount == 0:
        raise KeyTaken


async def replayed_resource(connection: AsyncConnection, request: RequestKey) -> str | None:
    """The result of the same request before, or None. Raises `Conflict` when the key stood for another request."""
    who, table = request.caller, idempotent_request
    query = select(table.c.request_sha256, table.c.resource).where(
        table.c.tenant == who.tenant,
        table.c.issuer == who.issuer,
        table.c.subject == who.subject,
        table.c.key == request.key,
    )
    row = (await connection.execute(query)).first()
    if row is None:
        return None
    if row.request_sha256 != request.request_sha256:
        raise Conflict(
            "This `Idempotency-Key` was used for another request.",
            code="idempotency_key_reused",
            hint="send a fresh key with every different request",
        )
    resource: str = row.resource
    return resource


class IdempotencyStore:
    """For changes that are made outside the database. Raises `Unavailable` (503 `database_unavailable`)."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def replayed_resource(self, request: RequestKey | None) -> str | None:
        if request is None:
            return None
        async with self._transaction() as connection:
            return await replayed_resource(connection, request)

    async def remember(self, request: RequestKey, resource: str) -> None:
        """Raises `KeyTaken`."""
        async with self._transaction() as connection:
            await remember(connection, request, resource)

    @contextlib.asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection]:
        try:
            async with self._engine.begin() as connection:
                yield connection
        except (SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            raise Unavailable(
                "The database that remembers `Idempotency-Key` cannot be reached.",
                code="database_unavailable",
                hint="retry, or send the request without the key",
                detail=type(error).__name__,
            ) from error


def _ordered(content: object) -> object:
    """Sets have no order of their own, and their `repr` differs from process to process."""
    fields = getattr(content, "__dataclass_fields__", None)
    if fields is not None:
        return [(name, _ordered(getattr(content, name))) for name in fields]
    if isinstance(content, frozenset):
        return sorted(content)
    return content
