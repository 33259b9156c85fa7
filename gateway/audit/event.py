"""The fields common to all audit records: who, where, when, and the split between hashed facts and erasable values.

`rec` is the canonical JSON that is hashed. Personal values appear in it only as keyed commitments; the clear values go
beside it (`side`), where erasure may empty them without breaking the chain. Pure; knows no files and no SQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from gateway.audit.canonical import CommitmentKey, canonical_json, storable
from gateway.audit.columns import encode_side
from gateway.audit.personal import commitments, labels
from gateway.audit.public_path import public_path
from gateway.audit.salts import SALTS
from gateway.flow.context import RequestContext
from gateway.flow.values import ANONYMOUS, Principal

SCHEMA_VERSION = 3
"""1: targets, reasons and differences of `admin` records were hashed in the clear. 2: so was any purpose, data class,
model name and reason of a rule, and an erasure was not on record."""

Phase = Literal["intent", "completion", "denied", "aggregated", "admin", "access", "system"]


@dataclass(frozen=True, slots=True)
class Record:
    """One event, ready for the spool: the hashed bytes and what travels beside them."""

    event_id: UUID
    rec: bytes
    side: bytes


@dataclass(frozen=True, slots=True)
class Origin:
    """The fields that all records of one process share."""

    node_id: str
    boot_id: UUID
    gateway_version: str
    key: CommitmentKey


@dataclass(frozen=True, slots=True)
class Caller:
    """The `who` of a record and its personal values; the two records of one request share it."""

    who: Mapping[str, Any]
    salt: bytes
    personal: Mapping[str, Any]
    side: bytes


def caller(
    origin: Origin,
    context: RequestContext,
    principal: Principal,
    user_label: str | None = None,
    metadata: Mapping[str, str] | None = None,
    free_words: Mapping[str, str] | None = None,
) -> Caller:
    client = context.client
    values: dict[str, Any] = {
        "subject": storable(principal.subject, 512),
        "display": storable(principal.display, 256),
        "source_ip": storable(client.ip, 64),
        "forwarded_for": storable(client.forwarded_for, 256),
        "user_agent": storable(client.user_agent, 256),
        "client_request_id": storable(client.client_request_id, 128),
        "user_label": storable(user_label, 256),
        "labels": labels(metadata) if metadata else None,
        **{name: storable(value, 256) for name, value in (free_words or {}).items()},
    }
    personal = {name: value for name, value in values.items() if value is not None}
    salt = SALTS.draw()
    who = {
        "tenant": text(principal.tenant, 256),
        "issuer": text(principal.issuer, 512),
        "kind": principal.kind,
        "roles": sorted(principal.roles),
        "groups": sorted(principal.groups)[:64] if principal.groups else None,
        "scopes": sorted(principal.scopes)[:64] if principal.scopes else None,
        "department": text(principal.department, 256),
        "clearance": principal.clearance,
        "client_id": text(principal.client_id, 256),
        "credential_id": text(principal.credential_id, 256),
        "credential_fpr": principal.credential_fingerprint,
        "provider": principal.provider,
        "commit": commitments(origin.key, salt, personal),
    }
    return Caller(filled(who), salt, personal, encode_side(personal, salt))


def opening(origin: Origin, event_id: UUID, request_id: UUID | str, now: datetime, phase: Phase) -> dict[str, Any]:
    """The fields every record starts with. Identifiers and times are written as text by the serializer."""
    return {
        "schema": SCHEMA_VERSION,
        "event_id": event_id,
        "request_id": request_id,
        "phase": phase,
        "node": origin.node_id,
        "boot": origin.boot_id,
        "ts": now,
    }


def nobody(origin: Origin, salt: bytes, personal: Mapping[str, Any]) -> dict[str, Any]:
    """The `who` of a record that concerns no known caller."""
    return {
        "tenant": ANONYMOUS.tenant,
        "issuer": ANONYMOUS.issuer,
        "kind": ANONYMOUS.kind,
        "roles": [],
        "commit": commitments(origin.key, salt, personal),
    }


def head(origin: Origin, event_id: UUID, now: datetime, phase: Phase, context: RequestContext) -> dict[str, Any]:
    """The opening of a record about a request, and where the request came in."""
    return {
        **opening(origin, event_id, context.request_id, now, phase),
        "where": filled(
            {
                "route": text(public_path(context.route), 256),
                "method": context.method,
                "trace_id": text(context.trace_id, 128),
                "gateway_version": origin.gateway_version,
            }
        ),
    }


def finish(event_id: UUID, document: dict[str, Any], side: bytes) -> Record:
    return Record(event_id, canonical_json(document), side)


def text(value: str | None, limit: int = 1024) -> str | None:
    """Cut, not cleaned: `rec` keeps U+0000 as it came."""
    return value if value is None or len(value) <= limit else value[:limit]


def filled(document: dict[str, Any]) -> dict[str, Any]:
    """Without the fields that are not there."""
    return {key: value for key, value in document.items() if value is not None}
