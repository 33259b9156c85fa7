"""`/admin/v1/audit`: who asked what, what was decided and why. Permission `audit.read`; every read is itself recorded.

Parses and renders; `gateway.audit.reader` asks the database.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import orjson
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.audit.views import (
    Comparison,
    EventDetail,
    EventPage,
    EventView,
    Presented,
    RequestPage,
    RequestView,
)
from gateway.admin.bodies import json_body, read_model
from gateway.admin.guard import AdminCall, PermissionGuard
from gateway.admin.policies.views import VersionDetail
from gateway.admin.recording import reading
from gateway.audit.comparison import compare
from gateway.audit.reader import MAX_LIMIT, AuditReader, EventFilter, Page
from gateway.audit.request_view import request_views
from gateway.errors import InvalidRequest, NotFound, NotPermitted, Unavailable

PERMISSION = "audit.read"
DEFAULT_RANGE = timedelta(hours=24)
LONGEST_RANGE = timedelta(days=31)
NO_TENANT = "-"
"""Tenant of requests whose caller was never identified: their refusals concern every auditor."""

PolicyVersions = Callable[[AdminCall, int], Awaitable[VersionDetail]]
VersionNumber = Annotated[int, Path(ge=1, le=2**31 - 1)]
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
    label: str | None = Field(None, max_length=600, description="`name:value` of the request's `metadata`")
    day: date | None = Field(None, description="one whole local day of `tz`, instead of `from` and `to`")
    tz: str = Field("UTC", max_length=64, description="IANA time zone of `day`, and of times without an offset")
    cursor: str | None = Field(None, max_length=200)
    limit: int = Field(100, ge=1, le=MAX_LIMIT)

    @property
    def moving(self) -> bool:
        """The range follows the clock."""
        return self.day is None and (self.start is None or self.end is None)


def routes(reader: AuditReader, guard: PermissionGuard, policies: PolicyVersions) -> APIRouter:
    """The audit routes, to be included in the admin application. `policies` raises `NotFound`."""
    router = APIRouter(prefix="/admin/v1/audit", tags=["audit"])
    permitted = guard.require(PERMISSION)

    @router.get("/events", summary="Audit events, newest first", responses={200: {"model": EventPage}})
    async def events(
        request: Request, query: Annotated[EventQuery, Query()], call: AdminCall = Depends(permitted)
    ) -> Response:
        """Newest first; `next_cursor` leads to older ones. With `Accept: text/csv`, the same rows as CSV."""
        async with reading(guard, call, "audit/events") as event:
            wanted = _filter(query, call, datetime.now(UTC))
            page = await reader.events(wanted, limit=query.limit, cursor=query.cursor, moving_range=query.moving)
            event.target = f"audit/events?{_describe(query)}"
        return page_answer(request, page, page.events, tuple(EventView.model_fields))

    @router.get("/requests", summary="Requests, newest first", responses={200: {"model": RequestPage}})
    async def requests(
        request: Request, query: Annotated[EventQuery, Query()], call: AdminCall = Depends(permitted)
    ) -> Response:
        """One row for each request that has ended: who, what, decided by which rule and why, and the result. The
        filters are those of the events."""
        async with reading(guard, call, "audit/requests") as event:
            wanted = replace(_filter(query, call, datetime.now(UTC)), ended=True)
            page = await reader.events(wanted, limit=query.limit, cursor=query.cursor, moving_range=query.moving)
            records = await reader.records_of([event["request_id"] for event in page.events]) if page.events else ()
            event.target = f"audit/requests?{_describe(query)}"
        return page_answer(request, page, request_views(page.events, records), tuple(RequestView.model_fields))

    @router.get("/events/{event_id}", summary="One audit event", responses={200: {"model": EventDetail}})
    async def event(event_id: UUID, call: AdminCall = Depends(permitted)) -> Response:
        """One event with its hashed record and its place in the chain."""
        async with reading(guard, call, f"audit/events/{event_id}"):
            found = await reader.event(event_id, tenants=_tenants(call))
            if found is None:
                raise NotFound("There is no such audit event.", param="event_id")
        return _json({"object": "audit.event", **found})

    @router.post(
        "/events/{event_id}:compare",
        summary="Whether a text is the one that an event commits to",
        response_model=Comparison,
        openapi_extra=json_body(Presented),
    )
    async def compare_text(event_id: UUID, request: Request, call: AdminCall = Depends(permitted)) -> Comparison:
        """The text is kept nowhere. A prompt is compared as it was sent, before any redaction."""
        async with reading(guard, call, f"audit/events/{event_id}:compare") as event:
            body = await read_model(request, Presented)
            found = await reader.event(event_id, tenants=_tenants(call))
            if found is None:
                raise NotFound("There is no such audit event.", param="event_id")
            if reader.commitments is None:
                raise Unavailable("This gateway has no key to compare with.", code="audit_unavailable")
            salt = await reader.salt_of(event_id)
            messages, tools = body.chat()
            verdict = compare(found, salt, reader.commitments, body.kind, body.text, messages, tools)
            event.diff = {"kind": body.kind, "verdict": verdict}
        return Comparison(event_id=event_id, kind=body.kind, verdict=verdict)

    @router.get("/policies/{version}", summary="The policy that decided", response_model=VersionDetail)
    async def policy(version: VersionNumber, call: AdminCall = Depends(permitted)) -> VersionDetail:
        """The version of the policy that a record names, as it was written: readable with `audit.read` alone."""
        async with reading(guard, call, f"audit/policies/{version}"):
            return await policies(call, version)

    return router


def page_answer(request: Request, page: Page, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Response:
    if wants_csv(request.headers.get("accept", "")):
        headers = {"x-next-cursor": page.next_cursor} if page.next_cursor is not None else {}
        return Response(to_csv(columns, rows), media_type=MEDIA_TYPE, headers={**headers, "vary": "accept"})
    return _json(
        {
            "object": "list",
            "data": rows,
            "has_more": page.next_cursor is not None,
            "next_cursor": page.next_cursor,
            "watermark": page.lag.watermark,
            "ingest_lag_s": round(page.lag.seconds, 3),
        }
    )


def _filter(query: EventQuery, call: AdminCall, now: datetime) -> EventFilter:
    zone = _zone(query.tz)
    if query.day is not None:
        if query.start is not None or query.end is not None:
            raise InvalidRequest("`day` stands for `from` and `to`.", code="invalid_range", param="day")
        start = datetime.combine(query.day, time(), zone)
        end = datetime.combine(query.day + timedelta(days=1), time(), zone)
    else:
        end = _aware(query.end, zone) or now
        start = _aware(query.start, zone) or end - DEFAULT_RANGE
    if start >= end:
        raise InvalidRequest("`from` must be before `to`.", code="invalid_range", param="from")
    if end - start > LONGEST_RANGE:
        raise InvalidRequest(
            f"The range is longer than {LONGEST_RANGE.days} days.",
            code="range_too_wide",
            param="from",
            hint=f"query at most {LONGEST_RANGE.days} days at a time and page with `cursor`",
        )
    tenants = _tenants(call)
    if query.tenant is not None and query.tenant not in tenants:
        raise NotPermitted("You may read the audit trail of your own tenant only.", hint="leave `tenant` out")
    values = query.model_dump(exclude={"start", "end", "cursor", "limit", "day", "tz", "label"})
    return EventFilter(start=start, end=end, tenants=tenants, label=_label(query.label), **values)


def _label(label: str | None) -> tuple[str, str] | None:
    if label is None:
        return None
    name, colon, value = label.partition(":")
    if not colon or not name:
        raise InvalidRequest("`label` must be `name:value`.", code="invalid_value", param="label")
    return name, value


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidRequest(
            "`tz` is not a known time zone.", code="invalid_value", param="tz", hint="an IANA name, as Europe/Madrid"
        ) from None


def _tenants(call: AdminCall) -> tuple[str, ...]:
    return (call.principal.tenant, NO_TENANT)


def _aware(moment: datetime | None, zone: ZoneInfo) -> datetime | None:
    return moment if moment is None or moment.tzinfo is not None else moment.replace(tzinfo=zone)


def _describe(query: EventQuery) -> str:
    asked: dict[str, Any] = query.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude={"cursor", *(() if query.tz != "UTC" else ("tz",))}
    )
    return "&".join(f"{name}={value}" for name, value in sorted(asked.items()))


def _json(document: dict[str, Any]) -> Response:
    body = orjson.dumps(document, option=orjson.OPT_UTC_Z)
    return Response(body, media_type="application/json")


MEDIA_TYPE = "text/csv"
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def wants_csv(accept: str) -> bool:
    """Whether `Accept` names CSV, and JSON not before it."""
    kinds = [part.split(";")[0].strip() for part in accept.split(",")]
    json_at = kinds.index("application/json") if "application/json" in kinds else len(kinds)
    return MEDIA_TYPE in kinds and kinds.index(MEDIA_TYPE) < json_at


def to_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows([_cell(row.get(name)) for name in columns] for row in rows)
    return out.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        value = " ".join(map(str, value))
    text = value.isoformat() if isinstance(value, datetime) else str(value)
    harmless = isinstance(value, int | float) or not text.startswith(_FORMULA)
    return text if harmless else f"'{text}"
