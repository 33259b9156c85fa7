"""What every identity route does around its work: who calls, the audit event of a refusal, the headers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Header
from pydantic import BaseModel

from gateway.admin.guard import AdminCall, PermissionGuard
from gateway.errors import GatewayError
from gateway.identity.accounts import Caller

READ, WRITE = "identity.read", "identity.write"
NO_STORE = {"cache-control": "no-store"}
IdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=255)]


def caller_of(call: AdminCall, idempotency_key: str | None = None) -> Caller:
    return Caller(call.principal, call.context, idempotency_key)


@asynccontextmanager
async def changing(guard: PermissionGuard, call: AdminCall, target: str) -> AsyncIterator[None]:
    """A refused change is an event as well: who tried what, and why not. The event of success is the route's."""
    try:
        yield
    except GatewayError as error:
        await guard.record(
            call, kind="admin", target=target, status=error.status, error_code=error.code, reason=error.detail
        )
        raise


@asynccontextmanager
async def reading(guard: PermissionGuard, call: AdminCall, target: str) -> AsyncIterator[None]:
    """Who may be whom is sensitive: reads are events too, found or not."""
    try:
        yield
    except GatewayError as error:
        await guard.record(call, kind="access", target=target, status=error.status, error_code=error.code)
        raise
    await guard.record(call, kind="access", target=target)


def before_after(before: BaseModel | None, after: BaseModel | None) -> dict[str, Any]:
    """The `diff` of an audit event. Views hold no secret but an issued key's text, which is taken out here."""
    return {"before": _plain(before), "after": _plain(after)}


def _plain(view: BaseModel | None) -> dict[str, Any] | None:
    return None if view is None else view.model_dump(mode="json", exclude={"key", "replaces"})
