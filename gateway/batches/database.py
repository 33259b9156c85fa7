"""Transactions of files and batches. A database that cannot be reached is 503 `database_unavailable`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import asyncpg
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.errors import Unavailable


class Database:
    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """Raises `Unavailable`."""
        try:
            async with self._engine.begin() as connection:
                yield connection
        except (SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            raise Unavailable(
                "The database of files and batches cannot be reached.",
                code="database_unavailable",
                hint="retry",
                detail=type(error).__name__,
            ) from error
