"""The door to Postgres for this domain: connections, "the database is away" as 503, notifications, served requests.

Owns what `repository` and `revocation_store` share. Knows no rule of accounts or revocations.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta

import asyncpg
from sqlalchemy import delete, func, select, text
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.errors import Unavailable
from gateway.flow.values import Principal
from gateway.identity.revocations import CHANNEL
from gateway.identity.tables import idempotency

REMEMBERED = timedelta(days=2)
"""How long a request with an `Idempotency-Key` can be repeated."""


@dataclass(frozen=True, slots=True)
class RequestKey:
    """An `Idempotency-Key` of one caller, and the request it stands for."""

    caller: Principal
    key: str
    request_sha256: str


@dataclass(frozen=True, slots=True)
class Served:
    """The result of an earlier request with that key."""

    request_sha256: str
    resource: str


class KeyTaken(Exception):
    """Another request with this idempotency key was faster."""


class NameTaken(Exception):
    """Something of that name exists already."""


class Superseded(Exception):
    """The row to be replaced is no longer what it was."""


class IdentityStore:
    """Connections of the identity domain. Every failure to reach the database is `Unavailable` `idp_unavailable`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    @property
    def database_url(self) -> str:
        """With the password; for the listening connection only."""
        return self._engine.url.render_as_string(hide_password=False)

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        with _unavailable_when_down():
            async with self._engine.connect() as connection:
                yield connection

    @contextlib.asynccontextmanager
    async def write(self, request: RequestKey | None = None, resource: str = "") -> AsyncIterator[AsyncConnection]:
        """One transaction; on commit every replica is told. Raises `KeyTaken` before anything else is done."""
        with _unavailable_when_down():
            async with self._engine.begin() as connection:
                if request is not None:
                    await _remember(connection, request, resource)
                yield connection
                await connection.execute(text("SELECT pg_notify(:channel, '')"), {"channel": CHANNEL})

    @contextlib.asynccontextmanager
    async def quiet_write(self) -> AsyncIterator[AsyncConnection]:
        """One transaction that nobody needs to hear of."""
        with _unavailable_when_down():
            async with self._engine.begin() as connection:
                yield connection

    async def remember(self, request: RequestKey, resource: str) -> None:
        """For a change that is made outside the database. Raises `KeyTaken`."""
        async with self.quiet_write() as connection:
            await _remember(connection, request, resource)

    async def served(self, caller: Principal, key: str) -> Served | None:
        query = select(idempotency).where(
            idempotency.c.tenant == caller.tenant,
            idempotency.c.issuer == caller.issuer,
            idempotency.c.subject == caller.subject,
            idempotency.c.key == key,
        )
        async with self.read() as connection:
            row = (await connection.execute(query)).mappings().first()
        return None if row is None else Served(row["request_sha256"], row["resource"])


async def _remember(connection: AsyncConnection, request: RequestKey, resource: str) -> None:
    who = request.caller
    await connection.execute(
        delete(idempotency).where(
            idempotency.c.tenant == who.tenant,
            idempotency.c.issuer == who.issuer,
            idempotency.c.subject == who.subject,
            idempotency.c.created_at < func.clock_timestamp() - REMEMBERED,
        )
    )
    statement = upsert(idempotency).values(
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


@contextlib.contextmanager
def _unavailable_when_down() -> Iterator[None]:
    try:
        yield
    except IntegrityError as error:
        raise NameTaken from error
    except (SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
        raise Unavailable(
            "The identity store cannot be reached.",
            code="idp_unavailable",
            hint="retry; nothing was decided",
            detail=type(error).__name__,
        ) from error
