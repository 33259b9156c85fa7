"""The store of responses: kept, read and deleted for their owner alone, and removed when their time is over.

Without content keys nothing is kept. Every statement names the owner and the time, so that what belongs to somebody
else and what is over are as if they were not there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import Select, delete, func, insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.audit.content import ContentSealer
from gateway.conversations.database import owned, too_long, transaction
from gateway.conversations.sealing import Owner, seal, unseal
from gateway.conversations.tables import stored_response
from gateway.errors import Unavailable
from gateway.flow.context import Clock

log = logging.getLogger("esclusa.conversations")

MAX_CHAIN = 256
"""Responses that one request may continue."""
MAX_CHAIN_BYTES = 16 * 1024 * 1024
"""Of them together, before compression."""
MAX_REFERENCED = 256
"""Responses whose items one request may name."""
SWEEP_S = 60.0
SWEPT_AT_ONCE = 1000
_CHAIN = text("""
WITH RECURSIVE chain AS (
    SELECT id, previous, size, 1 AS depth FROM stored_response
    WHERE id = :id AND tenant = :tenant AND issuer = :issuer AND subject = :subject
      AND expires_at > clock_timestamp()
    UNION ALL
    SELECT older.id, older.previous, older.size, chain.depth + 1
    FROM stored_response AS older JOIN chain ON older.id = chain.previous
    WHERE older.tenant = :tenant AND older.issuer = :issuer AND older.subject = :subject
      AND older.expires_at > clock_timestamp() AND chain.depth <= :most
)
SELECT id, previous, size FROM chain ORDER BY depth DESC
""")
_SWEEPS = [
    text(f"""
DELETE FROM {table} WHERE id IN (
    SELECT id FROM {table} WHERE expires_at <= clock_timestamp() LIMIT :most FOR UPDATE SKIP LOCKED)
""")
    for table in ("stored_conversation", "stored_response")
]


@dataclass(frozen=True, slots=True)
class Kept:
    """One response as it is kept: the object that was answered, and the items of its input."""

    id: UUID
    response: dict[str, Any]
    input: list[dict[str, Any]]
    created_at: datetime
    expires_at: datetime
    data_class: str | None = None


class ResponseStore:
    """`sealer` None: there is no key, and nothing is kept. All methods raise `Unavailable` (503
    `responses_unavailable`) where the database is away."""

    def __init__(self, engine: AsyncEngine, sealer: ContentSealer | None, clock: Clock) -> None:
        self._engine, self._sealer, self._clock = engine, sealer, clock

    @property
    def keeps(self) -> bool:
        return self._sealer is not None

    async def keep(
        self,
        owner: Owner,
        response_id: UUID,
        response: dict[str, Any],
        items: Sequence[dict[str, Any]],
        *,
        previous: UUID | None = None,
        conversation: UUID | None = None,
        data_class: str | None = None,
        kept: timedelta,
    ) -> None:
        """Durable when it returns. `data_class`: as the caller has stated it."""
        if self._sealer is None:
            return
        sealer, now, document = self._sealer, self._clock.now(), document_of(response, items, data_class)
        sealed = await asyncio.to_thread(seal, sealer, document, response_id, owner, now, kept)
        row = insert(stored_response).values(
            id=response_id,
            tenant=owner.tenant,
            issuer=owner.issuer,
            subject=owner.subject,
            previous=previous,
            conversation=conversation,
            key_id=sealed.key_id,
            salt=sealed.salt,
            envelope=sealed.envelope,
            size=await asyncio.to_thread(_size, document),
            expires_at=sealed.expires_at,
        )
        async with transaction(self._engine) as connection:
            await connection.execute(row)

    async def get(self, owner: Owner, response_id: UUID) -> Kept | None:
        found = await self.several(owner, [response_id])
        return found[0] if found else None

    async def several(self, owner: Owner, ids: Sequence[UUID]) -> list[Kept]:
        """Those that there are, in the order asked for. Raises `InvalidRequest` for too many."""
        if len(ids) > MAX_REFERENCED:
            raise too_long(f"items of more than {MAX_REFERENCED} responses", "input")
        if self._sealer is None or not ids:
            return []
        async with transaction(self._engine) as connection:
            sizes = select(func.sum(stored_response.c.size)).where(
                *owned(stored_response, owner), stored_response.c.id.in_(ids)
            )
            if ((await connection.execute(sizes)).scalar() or 0) > MAX_CHAIN_BYTES and len(ids) > 1:
                raise too_long(f"more than {MAX_CHAIN_BYTES} bytes", "input")
            return await self._read(connection, self._sealer, owner, ids)

    async def chain(self, owner: Owner, response_id: UUID) -> list[Kept] | None:
        """The response and all that it continues, oldest first; None where one of them is not there any more.
        Raises `InvalidRequest` for a conversation that is too long."""
        if self._sealer is None:
            return None
        values = {
            "id": response_id,
            "tenant": owner.tenant,
            "issuer": owner.issuer,
            "subject": owner.subject,
            "most": MAX_CHAIN,
        }
        async with transaction(self._engine) as connection:
            links = (await connection.execute(_CHAIN, values)).mappings().all()
            if len(links) > MAX_CHAIN:
                raise too_long(f"more than {MAX_CHAIN} responses", "previous_response_id")
            if sum(link["size"] for link in links) > MAX_CHAIN_BYTES:
                raise too_long(f"more than {MAX_CHAIN_BYTES} bytes", "previous_response_id")
            if not links or links[0]["previous"] is not None:
                return None
            found = await self._read(connection, self._sealer, owner, [UUID(int=link["id"].int) for link in links])
        return found if len(found) == len(links) else None

    async def delete(self, owner: Owner, response_id: UUID) -> bool:
        """False where there is none. What continues it can no longer be continued itself."""
        statement = delete(stored_response).where(*owned(stored_response, owner), stored_response.c.id == response_id)
        async with transaction(self._engine) as connection:
            return (await connection.execute(statement)).rowcount > 0

    async def sweep(self) -> int:
        """Remove what is past its time; returns how many."""
        swept = 0
        for statement in _SWEEPS:
            done = SWEPT_AT_ONCE
            while done == SWEPT_AT_ONCE:
                async with transaction(self._engine) as connection:
                    done = (await connection.execute(statement, {"most": SWEPT_AT_ONCE})).rowcount
                swept += done
        return swept

    async def keep_sweeping(self) -> None:
        """For ever."""
        while True:
            try:
                if swept := await self.sweep():
                    log.info("responses removed after their time: %d", swept)
            except Unavailable as error:
                log.warning("responses past their time are not removed now: %s", error.detail)
            await asyncio.sleep(SWEEP_S)

    async def _read(
        self, connection: AsyncConnection, sealer: ContentSealer, owner: Owner, ids: Sequence[UUID]
    ) -> list[Kept]:
        query = select(stored_response).where(*owned(stored_response, owner), stored_response.c.id.in_(ids))
        found = {one.id: one for one in await read_rows(connection, sealer, owner, query)}
        return [found[key] for key in ids if key in found]


async def read_rows(connection: AsyncConnection, sealer: ContentSealer, owner: Owner, query: Select[Any]) -> list[Kept]:
    """Those that can be opened."""
    rows = [dict(row) for row in (await connection.execute(query)).mappings()]
    documents = await asyncio.to_thread(lambda: [unseal(sealer, row, owner) for row in rows])
    found = list[Kept]()
    for row, document in zip(rows, documents, strict=True):
        key = UUID(int=row["id"].int)
        if document is None:
            log.error("a kept response cannot be opened", extra={"request_id": str(key)})
            continue
        found.append(
            Kept(
                key,
                document["response"],
                document["input"],
                row["created_at"],
                row["expires_at"],
                document.get("data_class"),
            )
        )
    return found


def document_of(response: dict[str, Any], items: Sequence[dict[str, Any]], data_class: str | None) -> dict[str, Any]:
    return {"response": response, "input": list(items), "data_class": data_class}


def _size(document: dict[str, Any]) -> int:
    return len(orjson.dumps(document))
