"""`/admin/v1/audit`: who asked what, what was decided and why. Permission `audit.read`; every read is itself recorded.

Parses and renders; `gateway.audit.reader` asks the database.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

import orjson
from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.audit_views import EventDetail, EventPage
from gateway.admin.guard import AdminCall, PermissionGuard
from gateway.audit.reader import MAX_LIMIT, AuditReader, EventFilter
from gateway.errors import InvalidRequest, NotFound, NotPermitted

PERMISSION = "audit.read"
DEFAULT_RANGE = timedelta(hours=24)
LONGEST_RANGE = timedelta(days=31)
NO_TENANT = "-"
"""Tenant of requests whose caller was never identified: their refusals concern every auditor."""

Label = Annotated[str, Field(max_length=512)]


class EventQuery(BaseModel):
    """Filters of the list; an unknown one is refused, because ignoring it would show too much."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    start: datetime | None = Field(None, alias="from", description="inclusive; default 24 hours before `to`")
    end: datetime | None = Field(None, alias="to", description="exclusive; default now")
    subject: Label | None = None
    tenant: Label | None = None
    department: Label | None = None
    client_id: Label | None = None
    model: Label | None = Field(None, description="the requested or the served model")
    model_requested: Label | None = None
    model_served: Label | None = None
    decision: Literal["allow", "deny", "error"] | None = None
    deny_code: Label | None = None
    outcome: Label | None = None
    status: int | None = Field(None, ge=100, le=599)
    phase: Literal["intent", "completion", "denied", "aggregated", "admin", "access", "system"] | None = None
    action: Label | None = None
    policy_version: int | None = Field(None, ge=0, le=2**31 - 1)
    request_id: UUID | None = None
    cursor: str | None = Field(None, max_length=200)
    limit: int = Field(100, ge=1, le=MAX_LIMIT)


def routes(reader: AuditReader, guard: PermissionGuard) -> APIRouter:
    """The audit routes, to be included in the admin application."""
    router = APIRouter(prefix="/admin/v1/audit", tags=["audit"])
    permitted = guard.require(PERMISSION)

    @router.get("/events", summary="Audit events, newest first", responses={200: {"model": EventPage}})
    async def events(query: Annotated[EventQuery, Query()], call: AdminCall = Depends(permitted)) -> Response:
        """Newest first; `next_cursor` leads to older ones."""
        wanted = _filter(query, call, datetime.now(UTC))
        page = await reader.events(
            wanted, limit=query.limit, cursor=query.cursor, moving_range=query.start is None or query.end is None
        )
        await guard.record(call, kind="access", target=f"audit/events?{_describe(query)}")
        return _json(
            {
                "object": "list",
                "data": page.events,
                "has_more": page.next_cursor is not None,
                "next_cursor": page.next_cursor,
                "watermark": page.lag.watermark,
                "ingest_lag_s": round(page.lag.seconds, 3),
            }
        )

    @router.get("/events/{event_id}", summary="One audit event", responses={200: {"model": EventDetail}})
    async def event(event_id: UUID, call: AdminCall = Depends(permitted)) -> Response:
        """One event with its hashed record and its place in the chain."""
        found = await reader.event(event_id, tenants=_tenants(call))
        await guard.record(
            call,
            kind="access",
            target=f"audit/events/{event_id}",
            status=200 if found is not None else 404,
            error_code=None if found is not None else "not_found",
        )
        if found is None:
            raise NotFound("There is no such audit event.", param="event_id")
        return _json({"object": "audit.event", **found})

    return router


def _filter(query: EventQuery, call: AdminCall, now: datetime) -> EventFilter:
    end = _aware(query.end) or now
    start = _aware(query.start) or end - DEFAULT_RANGE
    if start >= end:
        raise InvalidRequest("`from` must be before `to`.", code="invalid_range", param="from")
    if end - start > LONGEST_RANGE:
        raise InvalidRequest(
            f"The range is longer than {LONGEST_RANGE.days} days.",
            code="range_too_wide",
            param="from",
            hint="ask for less at a time; a cursor leads through it",
        )
    tenants = _tenants(call)
    if query.tenant is not None and query.tenant not in tenants:
        raise NotPermitted("You may read the audit trail of your own tenant only.", hint="leave `tenant` out")
    values = query.model_dump(exclude={"start", "end", "cursor", "limit"})
    return EventFilter(start=start, end=end, tenants=tenants, **values)


def _tenants(call: AdminCall) -> tuple[str, ...]:
    return (call.principal.tenant, NO_TENANT)


def _aware(moment: datetime | None) -> datetime | None:
    """A time without an offset is UTC."""
    return moment if moment is None or moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _describe(query: EventQuery) -> str:
    asked: dict[str, Any] = query.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"cursor"})
    return "&".join(f"{name}={value}" for name, value in sorted(asked.items()))


def _json(document: dict[str, Any]) -> Response:
    body = orjson.dumps(document, option=orjson.OPT_UTC_Z)
    return Response(body, media_type="application/json")
