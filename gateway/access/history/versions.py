"""Values of the version history: who wrote which policy when. No behavior, no SQL."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from gateway.access.decision.compiled_policy import etag_of
from gateway.flow.values import Principal

Syntax = Literal["yaml", "json"]
Origin = Literal["seed", "change", "restore", "binding"]


@dataclass(frozen=True, slots=True)
class Author:
    """The verified identity behind a version; `display` is only for people to read.

    `people` are all names by which the human behind it can be recognized: the identity itself, the digest that its
    provider gives for the person, and the same two of the owner of a service account.
    """

    tenant: str
    issuer: str
    subject: str
    display: str | None = None
    people: tuple[str, ...] = ()

    def is_same_as(self, other: Author) -> bool:
        """Is it, as far as can be known, one human?"""
        if (self.issuer, self.subject) == (other.issuer, other.subject):
            return True
        return not set(self.people).isdisjoint(other.people)


def author_of(principal: Principal) -> Author:
    names = {f"{principal.issuer}#{principal.subject}"}
    if principal.owner is not None:
        names.add("#".join(principal.owner))
    names.update(f"person:{digest}" for digest in (principal.person, principal.owner_person) if digest is not None)
    return Author(principal.tenant, principal.issuer, principal.subject, principal.display, tuple(sorted(names)))


SYSTEM = Author(tenant="-", issuer="esclusa", subject="installation")
"""Author of the version that a seed file becomes."""


@dataclass(frozen=True, slots=True)
class NewVersion:
    """`known_models` are the catalog ids at writing: wildcard grants of this version reach no later model."""

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


class StaleVersion(Exception):
    """Somebody else wrote a version in between."""


class AlreadyDecided(Exception):
    """Somebody else approved or rejected the proposal in between."""
