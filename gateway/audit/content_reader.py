"""Reading recorded prompts and answers: finds them, opens them, and says whether they are what the chain tells of.

Knows nothing of rights: whoever calls it was let through and is on record. Read-only transactions, short timeouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.audit.canonical import parse_json
from gateway.audit.content import ContentSealer, ContentUnreadable, Kind, Sealed
from gateway.audit.reader import SETTLE_S, STATEMENT_TIMEOUT_MS, Settle
from gateway.audit.tables import audit_content, audit_event, plain
from gateway.errors import Unavailable

State = Literal["readable", "erased", "key_missing", "damaged"]


@dataclass(frozen=True, slots=True)
class RecordedText:
    """One text of a request. `erased`: the record tells of it and the store has it no more, by expiry or erasure."""

    event_id: UUID
    kind: Kind
    key_id: str
    sha256: str
    """Of the envelope, as the hash chain has it."""
    state: State
    created_at: datetime
    expires_at: datetime | None = None
    content: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RecordedContent:
    """The texts of one request, oldest first, and what policy wanted kept of it."""

    texts: tuple[RecordedText, ...]
    content_level: str | None


class ContentReader:
    """`sealer` None: without keys everything that is stored is `key_missing`."""

    def __init__(self, engine: AsyncEngine, sealer: ContentSealer | None, *, settle: Settle) -> None:
        self._engine, self._sealer, self._settle = engine, sealer, settle

    async def of_request(self, request_id: UUID, *, tenant: str) -> RecordedContent | None:
        """Oldest first; None when that tenant has no such request. Raises `Unavailable` (503 `audit_unavailable`)."""
        await self._settle(SETTLE_S)
        records = sa.select(audit_event.c.event_id, audit_event.c.ts, audit_event.c.rec).where(
            audit_event.c.request_id == request_id,
            audit_event.c.tenant == tenant,
            audit_event.c.phase.in_(("intent", "completion", "denied")),
        )
        contents = sa.select(audit_content).where(
            audit_content.c.request_id == request_id,
            audit_content.c.tenant == tenant,
            audit_content.c.expires_at > sa.func.clock_timestamp(),
        )
        try:
            async with self._engine.connect() as connection:
                await connection.exec_driver_sql("SET TRANSACTION READ ONLY")
                await connection.exec_driver_sql(f"SET LOCAL statement_timeout = {STATEMENT_TIMEOUT_MS}")
                events = (await connection.execute(records.order_by(audit_event.c.ts))).mappings().all()
                stored = [plain(row) for row in (await connection.execute(contents)).mappings()]
        except (SQLAlchemyError, OSError) as error:
            raise Unavailable(
                "Recorded content cannot be read now. Nothing is lost.",
                code="audit_unavailable",
                hint="try again in a few seconds",
                detail=type(error).__name__,
            ) from error
        if not events:
            return None
        kept = {(row["event_id"], row["kind"]): row for row in stored}
        documents = {event["event_id"]: parse_json(event["rec"]).get("content", {}) for event in events}
        texts = tuple(
            self._text(
                plain(event), kind, reference, kept.get((UUID(int=event["event_id"].int), kind)), request_id, tenant
            )
            for event in events
            for kind, reference in documents[event["event_id"]].get("sealed", {}).items()
        )
        return RecordedContent(texts, documents[events[-1]["event_id"]].get("level"))

    def _text(
        self,
        event: Mapping[str, Any],
        kind: Kind,
        reference: Mapping[str, str],
        row: Mapping[str, Any] | None,
        request_id: UUID,
        tenant: str,
    ) -> RecordedText:
        state: State = "erased"
        content = None
        if row is not None:
            sealed = Sealed(kind, row["key_id"], row["salt"], row["ciphertext"], row["expires_at"])
            if self._sealer is None:
                state = "key_missing"
            elif sealed.digest != reference["sha256"]:
                state = "damaged"
            else:
                try:
                    content = self._sealer.open(sealed, request_id, tenant)
                    state = "readable"
                except ContentUnreadable as unreadable:
                    state = unreadable.reason
        return RecordedText(
            event_id=event["event_id"],
            kind=kind,
            key_id=reference["key_id"],
            sha256=reference["sha256"],
            state=state,
            created_at=event["ts"],
            expires_at=row["expires_at"] if row is not None else None,
            content=content,
        )
