"""The store of conversations: kept, read, changed and deleted for their owner alone.

A conversation ends as a whole, so many days after it began, and takes with it all that was said in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.audit.content import ContentSealer
from gateway.conversations.database import owned, too_long, transaction
from gateway.conversations.sealing import Owner, seal, unseal
from gateway.conversations.store import MAX_CHAIN, MAX_CHAIN_BYTES, Kept, ResponseStore, document_of, read_rows
from gateway.conversations.tables import stored_conversation, stored_response
from gateway.errors import Conflict
from gateway.flow.context import Clock, IdSource

MAX_CONVERSATIONS = 1000
"""Of one owner."""
MAX_OWNED_BYTES = 256 * 1024 * 1024
"""Of all that is said in the conversations of one owner, before compression."""


@dataclass(frozen=True, slots=True)
class Conversation:
    id: UUID
    metadata: Mapping[str, str]
    created_at: datetime
    expires_at: datetime


class ConversationStore:
    """Raises `Unavailable` (503 `responses_unavailable`) where the database is away. None and False say that the owner
    has no such conversation."""

    def __init__(
        self, engine: AsyncEngine, sealer: ContentSealer | None, responses: ResponseStore, clock: Clock, ids: IdSource
    ) -> None:
        self._engine, self._sealer, self._responses = engine, sealer, responses
        self._clock, self._ids = clock, ids

    @property
    def keeps(self) -> bool:
        return self._sealer is not None

    async def create(
        self, owner: Owner, key: UUID, metadata: Mapping[str, str], kept: timedelta
    ) -> Conversation | None:
        """None without a key. Raises `Conflict` for one too many."""
        if self._sealer is None:
            return None
        now = self._clock.now()
        sealed = seal(self._sealer, {"metadata": dict(metadata)}, key, owner, now, kept)
        row = insert(stored_conversation).values(
            id=key,
            tenant=owner.tenant,
            issuer=owner.issuer,
            subject=owner.subject,
            key_id=sealed.key_id,
            salt=sealed.salt,
            envelope=sealed.envelope,
            created_at=now,
            expires_at=sealed.expires_at,
        )
        count = select(func.count()).select_from(stored_conversation).where(*owned(stored_conversation, owner))
        async with transaction(self._engine) as connection:
            if (await connection.execute(count)).scalar_one() >= MAX_CONVERSATIONS:
                raise Conflict(
                    f"You have {MAX_CONVERSATIONS} conversations.",
                    code="too_many_conversations",
                    hint="delete those that are over",
                )
            await connection.execute(row)
        return Conversation(key, metadata, now, sealed.expires_at)

    async def get(self, owner: Owner, key: UUID) -> Conversation | None:
        if self._sealer is None:
            return None
        async with transaction(self._engine) as connection:
            return await self._conversation(connection, self._sealer, owner, key)

    async def update(self, owner: Owner, key: UUID, metadata: Mapping[str, str]) -> Conversation | None:
        found = await self.get(owner, key)
        if found is None or self._sealer is None:
            return None
        now = self._clock.now()
        sealed = seal(self._sealer, {"metadata": dict(metadata)}, key, owner, now, found.expires_at - now)
        change = (
            update(stored_conversation)
            .where(*owned(stored_conversation, owner), stored_conversation.c.id == key)
            .values(key_id=sealed.key_id, salt=sealed.salt, envelope=sealed.envelope)
        )
        async with transaction(self._engine) as connection:
            changed = (await connection.execute(change)).rowcount
        return Conversation(key, metadata, found.created_at, found.expires_at) if changed else None

    async def delete(self, owner: Owner, key: UUID) -> bool:
        """With all that was said in it."""
        statement = delete(stored_conversation).where(
            *owned(stored_conversation, owner), stored_conversation.c.id == key
        )
        async with transaction(self._engine) as connection:
            return (await connection.execute(statement)).rowcount > 0

    async def turns(self, owner: Owner, key: UUID) -> list[Kept] | None:
        """All that was said, oldest first. Raises `InvalidRequest` for too much."""
        if self._sealer is None:
            return None
        table = stored_response
        ours = (*owned(table, owner), table.c.conversation == key)
        async with transaction(self._engine) as connection:
            if await self._conversation(connection, self._sealer, owner, key) is None:
                return None
            size = select(func.count(), func.coalesce(func.sum(table.c.size), 0)).where(*ours)
            count, total = (await connection.execute(size)).one()
            if count > MAX_CHAIN or total > MAX_CHAIN_BYTES:
                raise too_long(f"more than {MAX_CHAIN} turns or {MAX_CHAIN_BYTES} bytes", "conversation")
            query = select(table).where(*ours).order_by(table.c.created_at, table.c.id)
            return await read_rows(connection, self._sealer, owner, query)

    async def add(
        self,
        owner: Owner,
        conversation: Conversation,
        row: UUID,
        items: Sequence[dict[str, Any]],
        data_class: str | None,
    ) -> None:
        """Items that no model has answered yet. Raises `Conflict` where the owner has too much."""
        table = stored_response
        size = select(func.coalesce(func.sum(table.c.size), 0)).where(
            *owned(table, owner), table.c.conversation.is_not(None)
        )
        async with transaction(self._engine) as connection:
            if (await connection.execute(size)).scalar_one() > MAX_OWNED_BYTES:
                raise Conflict(
                    f"Your conversations have more than {MAX_OWNED_BYTES} bytes.",
                    code="too_many_conversations",
                    hint="delete those that are over",
                )
        left = conversation.expires_at - self._clock.now()
        await self._responses.keep(
            owner, row, UNANSWERED, items, conversation=conversation.id, data_class=data_class, kept=left
        )

    def new_row(self) -> UUID:
        return self._ids.uuid7()

    async def replace(self, owner: Owner, turn: Kept) -> bool:
        """The turn as it is now, without an item that it had."""
        if self._sealer is None:
            return False
        now = self._clock.now()
        document = document_of(turn.response, turn.input, turn.data_class)
        sealed = await asyncio.to_thread(seal, self._sealer, document, turn.id, owner, now, turn.expires_at - now)
        change = (
            update(stored_response)
            .where(*owned(stored_response, owner), stored_response.c.id == turn.id)
            .values(key_id=sealed.key_id, salt=sealed.salt, envelope=sealed.envelope)
        )
        async with transaction(self._engine) as connection:
            return (await connection.execute(change)).rowcount > 0

    async def _conversation(
        self, connection: AsyncConnection, sealer: ContentSealer, owner: Owner, key: UUID
    ) -> Conversation | None:
        table = stored_conversation
        query = select(table).where(*owned(table, owner), table.c.id == key)
        row = (await connection.execute(query)).mappings().first()
        document = None if row is None else unseal(sealer, dict(row), owner)
        if row is None or document is None:
            return None
        return Conversation(key, document["metadata"], row["created_at"], row["expires_at"])


UNANSWERED: dict[str, Any] = {"output": []}
"""In place of a response, of items that were put into a conversation by themselves."""
