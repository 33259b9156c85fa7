"""The permissions of the identity routes, and their callers as the identity domain knows them."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import Query

from gateway.admin.guard import AdminCall
from gateway.identity.accounts import Caller
from gateway.storage.pagination import decode_cursor

READ, WRITE = "identity.read", "identity.write"
Limit = Annotated[int, Query(ge=1, le=200)]
Cursor = Annotated[str | None, Query(max_length=64)]


def caller_of(call: AdminCall, idempotency_key: str | None = None) -> Caller:
    return Caller(call.principal, call.context, idempotency_key)


def row_before(cursor: str | None) -> UUID | None:
    """The last row of the page before. Raises `InvalidRequest` (400 `invalid_cursor`)."""
    return decode_cursor(cursor, lambda position: UUID(bytes=position))
