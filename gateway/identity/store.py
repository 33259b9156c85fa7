"""The door to Postgres for this domain: connections, "the database is away" as 503, notifications.

Owns what `repository` and `revocation_store` share. Knows no rule of accounts or revocations.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator

import asyncpg
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.errors import Unavailable
from gateway.identity.revocations import CHANNEL
from gateway.storage.idempotency import RequestKey, remember, replayed_resource


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
                    await remember(connection, request, resource)
                yield connection
                await connection.execute(text("SELECT pg_notify(:channel, '')"), {"channel": CHANNEL})

    @contextlib.asynccontextmanager
    async def quiet_write(self) -> AsyncIterator[AsyncConnection]:
        """One transaction that nobody needs to hear of."""
        with _unavailable_when_down():
            async with self._engine.begin() as connection:
                yield connection

    async def replayed_resource(self, request: RequestKey | None) -> str | None:
        """The result of the same request before, or None. Raises `Conflict` when the key stood for another request."""
        if request is None:
            return None
        async with self.read() as connection:
            return await replayed_resource(connection, request)


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
