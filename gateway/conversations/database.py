"""The connection of the stores, and what their owners' rows are."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import asyncpg
from sqlalchemy import ColumnElement, Table, func
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.conversations.sealing import Owner
from gateway.errors import InvalidRequest, Unavailable


@contextlib.asynccontextmanager
async def transaction(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """Raises `Unavailable` (503 `responses_unavailable`)."""
    try:
        async with engine.begin() as connection:
            yield connection
    except (SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
        raise Unavailable(
            "The store of responses cannot be reached. Nothing is lost.",
            code="responses_unavailable",
            hint="try again, or send the whole conversation with `store: false`",
            detail=type(error).__name__,
        ) from error


def owned(table: Table, owner: Owner) -> tuple[ColumnElement[bool], ...]:
    """Of the owner, and not over."""
    return (
        table.c.tenant == owner.tenant,
        table.c.issuer == owner.issuer,
        table.c.subject == owner.subject,
        table.c.expires_at > func.clock_timestamp(),
    )


def too_long(what: str, param: str) -> InvalidRequest:
    return InvalidRequest(
        f"The stored conversation is too long: it has {what}.",
        code="conversation_too_long",
        param=param,
        hint="begin a new one with a summary of this one",
    )
