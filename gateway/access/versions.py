"""Values of the version history: who wrote which policy when. No behaviour, no SQL."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from gateway.access.snapshot import etag_of

Syntax = Literal["yaml", "json"]
Origin = Literal["seed", "change", "restore", "binding"]


@dataclass(frozen=True, slots=True)
class Author:
    """The verified identity behind a version; `display` is only for people to read."""

    tenant: str
    issuer: str
    subject: str
    display: str | None = None

    def is_same_as(self, other: Author) -> bool:
        return (self.issuer, self.subject) == (other.issuer, other.subject)


SYSTEM = Author(tenant="-", issuer="esclusa", subject="installation")
"""Author of the version that a seed file becomes."""


@dataclass(frozen=True, slots=True)
class NewVersion:
    """`known_models` are the catalogue ids at writing: wildcard grants of this version reach no later model."""

    source: str
    syntax: Syntax
    sha256: str
    known_models: tuple[str, ...]
    author: Author
    reason: str = ""
    origin: Origin = "change"
    restored_from: int | None = None
    approver: Author | None = None


@dataclass(frozen=True, slots=True)
class StoredVersion:
    version: int
    content: NewVersion
    created_at: datetime

    @property
    def etag(self) -> str:
        return etag_of(self.version, self.content.sha256)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change that waits for a second person."""

    id: UUID
    base_version: int
    content: NewVersion
    created_at: datetime
    state: Literal["pending", "approved", "rejected"]
    decided_by: Author | None = None
    decided_at: datetime | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """One caller's key for one exact request (`request_sha256` covers route, precondition and body)."""

    key: str
    author: Author
    request_sha256: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a remembered write led to: a version, or a proposal."""

    request_sha256: str
    version: int | None
    proposal: UUID | None


class StaleVersion(Exception):
    """Somebody else wrote a version in between."""


class KeyTaken(Exception):
    """The same idempotency key was used at the same time."""
