"""Reading the trail: pages, one event, the latest decisions. Read-only transactions with a short statement timeout.

Before it reads it asks the writer to ship what is pending, so that the record of an answered request can be seen at
once; how far behind it is when Postgres is slow is part of the answer. Knows no HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.audit.canonical import CommitmentKey, parse_json
from gateway.audit.cursor import CursorPosition, seal, unseal
from gateway.audit.shipping_loop import Lag
from gateway.audit.system_event import PHASE
from gateway.audit.tables import audit_event, plain
from gateway.errors import Unavailable
from gateway.flow.values import Effect, PastDecision, Principal
from gateway.storage.pagination import decode_cursor, page_of

MAX_LIMIT = 500
STATEMENT_TIMEOUT_MS = 5000
SETTLE_S = 1.0

_HIDDEN = {"rec", "prev_hash", "hash", "personal", "personal_salt", "seal_id", "schema_version", "boot_id", "node_seq"}
_CLEAR = ("target", "model_requested")
_LISTED = [
    sa.func.coalesce(audit_event.c.personal[column.name].astext, column).label(column.name)
    if column.name in _CLEAR
    else column
    for column in audit_event.c
    if column.name not in _HIDDEN
]
"""Those of `_CLEAR` as they were, until they are erased."""
_EQUAL = {
    "subject": audit_event.c.subject,
    "tenant": audit_event.c.tenant,
    "department": audit_event.c.department,
    "client_id": audit_event.c.client_id,
    "model_requested": audit_event.c.model_requested,
    "model_served": audit_event.c.model_served,
    "decision": audit_event.c.decision,
    "deny_code": audit_event.c.deny_code,
    "outcome": audit_event.c.outcome,
    "status": audit_event.c.http_status,
    "phase": audit_event.c.phase,
    "action": audit_event.c.action,
    "policy_version": audit_event.c.policy_version,
    "request_id": audit_event.c.request_id,
}

Settle = Callable[[float], Awaitable[Lag]]


@dataclass(frozen=True, slots=True)
class EventFilter:
    """A filter over [start, end); None does not restrict. `model` is the requested or the served one; names that
    are in no catalog are not found by it.

    `tenants` is who the reader may see, None everyone; it is set by the caller's right, never by the query.
    """

    start: datetime
    end: datetime
    tenants: tuple[str, ...] | None = None
    subject: str | None = None
    tenant: str | None = None
    department: str | None = None
    client_id: str | None = None
    model: str | None = None
    model_requested: str | None = None
    model_served: str | None = None
    decision: str | None = None
    deny_code: str | None = None
    outcome: str | None = None
    status: int | None = None
    phase: str | None = None
    action: str | None = None
    policy_version: int | None = None
    request_id: UUID | None = None
    label: tuple[str, str] | None = None
    """Name and value of one label that the caller sent as `metadata`."""
    ended: bool = False
    """Only the last record of each request."""

    def fingerprint(self, *, without_range: bool = False) -> str:
        """The filter as text, for binding a cursor to it. A default range moves with the clock and is left out."""
        left_out = {"start", "end"} if without_range else set()
        return repr([(field.name, getattr(self, field.name)) for field in fields(self) if field.name not in left_out])


@dataclass(frozen=True, slots=True)
class Page:
    """Newest first. `watermark`: every event of this node before it is in the answer's reach."""

    events: tuple[Mapping[str, Any], ...]
    next_cursor: str | None
    lag: Lag


class AuditReader:
    """`cursor_key` must be the same in all replicas; `settle` is `AuditService.settle`."""

    def __init__(
        self, engine: AsyncEngine, *, cursor_key: bytes, settle: Settle, key: CommitmentKey | None = None
    ) -> None:
        self._engine, self._key, self._settle = engine, cursor_key, settle
        self.commitments = key

    async def events(
        self, wanted: EventFilter, *, limit: int = 100, cursor: str | None = None, moving_range: bool = False
    ) -> Page:
        """One page. Raises `InvalidRequest` (400 `invalid_cursor`) and `Unavailable` (503 `audit_unavailable`)."""
        fingerprint = wanted.fingerprint(without_range=moving_range)
        place = decode_cursor(cursor, lambda sealed: unseal(self._key, sealed, fingerprint))
        lag = await self._settle(SETTLE_S)
        limit = max(1, min(limit, MAX_LIMIT))
        statement = (
            sa.select(*_LISTED)
            .where(*_conditions(wanted))
            .order_by(audit_event.c.ts.desc(), audit_event.c.event_id.desc())
            .limit(limit + 1)
        )
        if place is not None:
            statement = statement.where(
                sa.tuple_(audit_event.c.ts, audit_event.c.event_id) < sa.tuple_(place.ts, place.event_id)
            )
        async with self._reading(lag) as connection:
            found = (await connection.execute(statement)).mappings().all()
        page = page_of(
            tuple(map(plain, found)),
            limit,
            lambda row: seal(self._key, CursorPosition(row["ts"], row["event_id"]), fingerprint),
        )
        return Page(events=tuple(page.rows), next_cursor=page.next_cursor, lag=lag)

    async def event(self, event_id: UUID, *, tenants: tuple[str, ...] | None = None) -> Mapping[str, Any] | None:
        """One event with its record, personal values and place in the chain; None when there is none to be seen."""
        lag = await self._settle(SETTLE_S)
        statement = sa.select(audit_event).where(audit_event.c.event_id == event_id, *_visible(tenants)).limit(1)
        # An UUIDv7 carries its time: that one fact leaves a single partition to search.
        if event_id.version == 7:
            made = sa.func.to_timestamp((event_id.int >> 80) / 1000)
            statement = statement.where(
                audit_event.c.ts.between(made - sa.text("interval '1 hour'"), made + sa.text("interval '1 hour'"))
            )
        async with self._reading(lag) as connection:
            row = (await connection.execute(statement)).mappings().one_or_none()
        return None if row is None else whole(plain(row))

    async def salt_of(self, event_id: UUID) -> bytes | None:
        """The salt of an event's commitments; None once it was erased."""
        statement = sa.select(audit_event.c.personal_salt).where(audit_event.c.event_id == event_id).limit(1)
        if event_id.version == 7:
            made = sa.func.to_timestamp((event_id.int >> 80) / 1000)
            hour = sa.text("interval '1 hour'")
            statement = statement.where(audit_event.c.ts.between(made - hour, made + hour))
        async with self._reading(await self._settle(0.0)) as connection:
            salt = (await connection.execute(statement)).scalar_one_or_none()
        return None if salt is None else bytes(salt)

    async def records_of(self, request_ids: Sequence[UUID]) -> tuple[Mapping[str, Any], ...]:
        """Time, phase, record and personal values of every event of these requests, oldest first."""
        event = audit_event.c
        statement = (
            sa.select(event.request_id, event.event_id, event.ts, event.phase, event.rec, event.personal)
            .where(event.request_id.in_(request_ids))
            .order_by(event.ts, event.event_id)
        )
        async with self._reading(await self._settle(0.0)) as connection:
            found = (await connection.execute(statement)).mappings().all()
        return tuple(plain(row) for row in found)

    async def of_request(self, request_id: UUID) -> tuple[Mapping[str, Any], ...]:
        """All events of one request, oldest first, as `event` gives them."""
        lag = await self._settle(SETTLE_S)
        statement = (
            sa.select(audit_event)
            .where(audit_event.c.request_id == request_id)
            .order_by(audit_event.c.ts, audit_event.c.event_id)
        )
        async with self._reading(lag) as connection:
            found = (await connection.execute(statement)).mappings().all()
        return tuple(whole(plain(row)) for row in found)

    async def recent(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int,
        tenants: tuple[str, ...] | None = None,
    ) -> tuple[PastDecision, ...]:
        """Policy decisions on requests, newest first (`flow.ports.PastDecisions`). Raises `Unavailable`."""
        lag = await self._settle(SETTLE_S)
        statement = (
            sa.select(audit_event.c.rec, audit_event.c.personal)
            .where(
                audit_event.c.phase.in_(("intent", "denied")),
                audit_event.c.policy_version.is_not(None),
                *_visible(tenants),
            )
            .order_by(audit_event.c.ts.desc(), audit_event.c.event_id.desc())
            .limit(limit)
        )
        if since is not None:
            statement = statement.where(audit_event.c.ts >= since)
        if until is not None:
            statement = statement.where(audit_event.c.ts < until)
        async with self._reading(lag) as connection:
            found = (await connection.execute(statement)).all()
        return tuple(past_decision(parse_json(rec), personal or {}) for rec, personal in found)

    async def seen_as(self, issuer: str, subject: str, *, since: datetime) -> tuple[Principal, ...]:
        """Each set of tenant, roles, groups and scopes (64 of both at most) with which this subject has sent requests.

        Raises `Unavailable` also where they are too many to read in time: what somebody was is then not known."""
        lag = await self._settle(SETTLE_S)
        event = audit_event.c
        who = sa.cast(sa.func.convert_from(event.rec, "UTF8"), JSONB)["who"]
        single = sa.cast(["commit", "credential_id", "credential_fpr", "client_id"], ARRAY(sa.Text))
        statement = (
            sa.select(who.op("-")(single))
            .where(event.subject == subject, event.issuer == issuer, event.ts >= since)
            .where(event.phase.not_in((PHASE, "completion")))
            .distinct()
        )
        async with self._reading(lag) as connection:
            found = (await connection.execute(statement)).scalars().all()
        return tuple(identity(who, subject) for who in found)

    async def recent_decisions(self, limit: int) -> tuple[PastDecision, ...]:
        """The newest `limit` decisions of all time."""
        return await self.recent(limit=limit)

    @asynccontextmanager
    async def _reading(self, lag: Lag) -> AsyncIterator[AsyncConnection]:
        try:
            async with self._engine.connect() as connection:
                await connection.exec_driver_sql("SET TRANSACTION READ ONLY")
                await connection.exec_driver_sql(f"SET LOCAL statement_timeout = {STATEMENT_TIMEOUT_MS}")
                yield connection
        except (SQLAlchemyError, OSError) as error:
            raise Unavailable(
                f"The audit trail cannot be read now; it is {lag.seconds:.0f} s behind. Nothing is lost.",
                code="audit_unavailable",
                hint="requests go on and their records wait on disk; try again in a few seconds",
                detail=type(error).__name__,
            ) from error


def whole(row: Mapping[str, Any]) -> dict[str, Any]:
    """Every column, hashes as hex, `rec` parsed."""
    event = dict(row)
    for name in ("prev_hash", "hash"):
        event[name] = event[name].hex()
    event["record"] = parse_json(event.pop("rec"))
    for name in _CLEAR:
        event[name] = (event["personal"] or {}).get(name, event[name])
    event.pop("personal_salt")
    return event


def _conditions(wanted: EventFilter) -> list[sa.ColumnElement[bool]]:
    conditions = [audit_event.c.ts >= wanted.start, audit_event.c.ts < wanted.end, *_visible(wanted.tenants)]
    for name, column in _EQUAL.items():
        value = getattr(wanted, name)
        if value is not None:
            conditions.append(column == value)
    if wanted.label is not None:
        personal, (name, value) = audit_event.c.personal, wanted.label
        conditions += [personal.has_key("labels"), personal["labels"].contains({name: value})]
    if wanted.ended:
        conditions.append(audit_event.c.phase.in_(("completion", "denied")))
    elif wanted.phase is None:
        conditions.append(audit_event.c.phase != PHASE)  # the trail about itself: only for who asks for it
    if wanted.model is not None:
        conditions.append(
            sa.or_(audit_event.c.model_requested == wanted.model, audit_event.c.model_served == wanted.model)
        )
    return conditions


def _visible(tenants: tuple[str, ...] | None) -> list[sa.ColumnElement[bool]]:
    return [] if tenants is None else [audit_event.c.tenant.in_(tenants)]


def past_decision(document: Mapping[str, Any], personal: Mapping[str, str]) -> PastDecision:
    """From an intent's record and the personal values that erasure has left."""
    who, what, decision = document["who"], document.get("what", {}), document["decision"]
    return PastDecision(
        request_id=UUID(document["request_id"]),
        at=datetime.fromisoformat(document["ts"]),
        principal=identity(who, personal.get("subject", "-")),
        action=what.get("action", ""),
        model=what.get("model_resolved", personal.get("model_requested", what.get("model_requested"))),
        effect=Effect(decision["policy_effect"]),
        rule_id=decision.get("rule_id"),
        policy_version=decision.get("policy_version"),
        data_class=personal.get("data_class", what.get("data_class")),
        purpose=personal.get("purpose", what.get("purpose")),
        source_ip=personal.get("source_ip"),
    )


def identity(who: Mapping[str, Any], subject: str) -> Principal:
    """The caller of a record, as far as it tells."""
    return Principal(
        tenant=who["tenant"],
        issuer=who["issuer"],
        subject=subject,
        kind=who["kind"],
        roles=frozenset(who["roles"]),
        groups=frozenset(who.get("groups", ())),
        scopes=frozenset(who.get("scopes", ())),
        department=who.get("department"),
        clearance=who.get("clearance"),
        client_id=who.get("client_id"),
        provider=who.get("provider"),
    )
