"""The record of what callers do with what is kept for them, written before anything is shown."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from uuid import UUID

from fastapi import Request

from gateway.errors import GatewayError
from gateway.flow.context import RequestContext
from gateway.flow.ports import AuditLog
from gateway.flow.values import AdminEvent, Principal


@asynccontextmanager
async def recorded(
    audit: AuditLog,
    request: Request,
    caller: Principal,
    action: str,
    kind: str,
    key: UUID | None,
    name: Callable[[UUID], str],
    absent: Callable[[], GatewayError],
) -> AsyncIterator[UUID]:
    """The key; `absent` is raised where there is none, since what was sent is no id. What a caller writes as an id goes
    into no record."""
    context: RequestContext = request.scope["state"]["context"]
    status, code = 200, None
    try:
        if key is None:
            raise absent()
        yield key
    except GatewayError as error:
        status, code = error.status, error.code
        raise
    finally:
        await audit.admin(
            AdminEvent(
                context=context,
                principal=caller,
                kind="access",
                action=action,
                target=f"{kind}/{'-' if key is None else name(key)}",
                allowed=code is None,
                status=status,
                error_code=code,
            )
        )
