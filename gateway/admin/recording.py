"""The audit event around every admin change or read, whether it succeeds or is refused.

The audit event is durable before the answer leaves. Knows no resource.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Header
from pydantic import BaseModel

from gateway.admin.guard import AdminCall, PermissionGuard
from gateway.errors import GatewayError

IdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=255)]


@dataclass(slots=True)
class Event:
    """What goes on record, filled in by the route as it learns it. A refusal keeps `reason` and `before_etag` of it."""

    target: str
    status: int = 200
    reason: str | None = None
    before_etag: str | None = None
    after_etag: str | None = None
    diff: dict[str, Any] | None = None
    approver: str | None = None


@asynccontextmanager
async def changing(guard: PermissionGuard, call: AdminCall, target: str, *, status: int = 200) -> AsyncIterator[Event]:
    """A change, or its refusal: who tried what, and why not."""
    async with _recorded(guard, call, "admin", Event(target, status)) as event:
        yield event


@asynccontextmanager
async def reading(
    guard: PermissionGuard, call: AdminCall, target: str, *, reason: str | None = None
) -> AsyncIterator[Event]:
    """Record a read. Identities and questions are sensitive: reads are events too, found or not."""
    async with _recorded(guard, call, "access", Event(target, reason=reason)) as event:
        yield event


@asynccontextmanager
async def _recorded(guard: PermissionGuard, call: AdminCall, kind: str, event: Event) -> AsyncIterator[Event]:
    try:
        yield event
    except GatewayError as error:
        await guard.record(
            call,
            kind=kind,
            target=event.target,
            status=error.status,
            error_code=error.code,
            reason=event.reason or error.detail,
            before_etag=event.before_etag,
        )
        raise
    await guard.record(
        call,
        kind=kind,
        target=event.target,
        status=event.status,
        reason=event.reason,
        before_etag=event.before_etag,
        after_etag=event.after_etag,
        diff=event.diff,
        approver=event.approver,
    )


def before_after(before: BaseModel | None, after: BaseModel | None) -> dict[str, Any]:
    """The `diff` of an audit event. Views hold no secret but an issued key's text, which is taken out here."""
    return {"before": _plain(before), "after": _plain(after)}


def _plain(view: BaseModel | None) -> dict[str, Any] | None:
    return None if view is None else view.model_dump(mode="json", exclude={"key", "replaces"})
