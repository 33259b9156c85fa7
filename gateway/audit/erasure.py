"""Erasing one person from the trail: the caller's own values, what administrators' records say about them, and content.

The chains stay whole, because they hold commitments only; with the salts gone nothing can be compared with them any
more. Needs `UPDATE (subject, personal, personal_salt)`, which the append-only trigger lets pass for erasure alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.audit.personal import ABOUT

_CONTENT = """
DELETE FROM audit_content WHERE request_id IN (
    SELECT request_id FROM audit_event WHERE tenant = :tenant AND issuer = :issuer AND subject = :subject)
"""
_OWN = """
UPDATE audit_event SET subject = NULL, personal_salt = NULL, personal = (
    SELECT jsonb_object_agg(value.key, value.value) FROM jsonb_each(personal) AS value WHERE value.key = ANY(:about))
WHERE tenant = :tenant AND issuer = :issuer AND subject = :subject
"""
# A name as a whole word, in any of the values that say what was done or read, to whom and why.
_ABOUT = """
UPDATE audit_event SET personal = NULLIF(personal - CAST(:about AS text[]), '{}'::jsonb)
WHERE tenant = :tenant AND personal ?| CAST(:about AS text[]) AND EXISTS (
    SELECT FROM jsonb_each(personal) AS value WHERE value.key = ANY(:about) AND value.value::text ~ :pattern)
"""
_QUARANTINE = "UPDATE audit_quarantine SET side = NULL WHERE convert_from(side, 'UTF8') ~ :pattern"


@dataclass(frozen=True, slots=True)
class Erased:
    """How many rows were emptied: of the person as caller, of mentions, of content, of refused rows."""

    own: int
    mentions: int
    contents: int
    quarantined: int


async def erase(engine: AsyncEngine, *, tenant: str, issuer: str, subject: str, also: tuple[str, ...] = ()) -> Erased:
    """One transaction. `also`: other names of the same person (e-mail, display name) to look for in mentions.

    What still waits in a spool is not reached: run it again once that is shipped.
    """
    person = {"tenant": tenant, "issuer": issuer, "subject": subject, "about": sorted(ABOUT)}
    async with engine.begin() as connection:
        contents = await _count(connection, _CONTENT, person)
        own = await _count(connection, _OWN, person)
        mentions = quarantined = 0
        for name in (subject, *also):
            wanted = {**person, "pattern": _pattern(name)}
            mentions += await _count(connection, _ABOUT, wanted)
            quarantined += await _count(connection, _QUARANTINE, wanted)
    return Erased(own, mentions, contents, quarantined)


async def _count(connection: AsyncConnection, statement: str, values: Mapping[str, Any]) -> int:
    text = sa.text(statement)
    named = {name: value for name, value in values.items() if f":{name}" in statement}
    return (await connection.execute(text, named)).rowcount


def _pattern(name: str) -> str:
    """A POSIX regular expression for the name in JSON text, not as part of a longer word."""
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    escaped = "".join(sign if sign.isalnum() else f"\\{sign}" if ord(sign) < 128 else sign for sign in quoted)
    return rf"(^|[^[:alnum:]_]){escaped}($|[^[:alnum:]_])"
