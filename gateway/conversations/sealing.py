"""Kept documents are encrypted with the content keys, each bound to its row and its owner. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import orjson

from gateway.audit.content import ContentSealer, ContentUnreadable, Sealed
from gateway.flow.values import Principal

MAX_BYTES = 64 * 1024 * 1024
"""Of one document: bodies and answers have smaller bounds of their own."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whoever a response is kept for. A service account's keys all act for it."""

    tenant: str
    issuer: str
    subject: str

    @classmethod
    def of(cls, principal: Principal) -> Owner:
        return cls(principal.tenant, principal.issuer, principal.subject)

    @property
    def bound(self) -> str:
        """What an envelope is bound to: a row that is given to somebody else cannot be opened."""
        return orjson.dumps([self.tenant, self.issuer, self.subject]).decode()


def seal(
    sealer: ContentSealer, document: dict[str, Any], row: UUID, owner: Owner, now: datetime, kept: timedelta
) -> Sealed:
    return sealer.seal("stored", document, row, owner.bound, now, retention=kept, max_bytes=MAX_BYTES)


def unseal(sealer: ContentSealer, row: Mapping[str, Any], owner: Owner) -> dict[str, Any] | None:
    """None where the key is gone or the row was changed: it is as if it was not there."""
    sealed = Sealed("stored", row["key_id"], row["salt"], row["envelope"], row["expires_at"])
    try:
        return sealer.open(sealed, UUID(int=row["id"].int), owner.bound)
    except ContentUnreadable:
        return None
