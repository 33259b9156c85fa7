"""Erasing one person from the trail: the caller's own values, what administrators' records say about them, and content.

The chains stay whole, because they hold commitments only; with the salts gone nothing can be compared with them any
more. Before it commits, the trail is told which rows were emptied (`tell`), so that an update by anybody else is seen.
Needs `UPDATE (subject, personal, personal_salt)`, which the append-only trigger lets pass for erasure alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.audit.committed import ABOUT_GROUP, OWN
from gateway.audit.personal import ABOUT
from gateway.audit.ranges import merged

_CONTENT = """
DELETE FROM audit_content WHERE request_id IN (
    SELECT request_id FROM audit_event WHERE tenant = :tenant AND issuer = :issuer AND subject = :subject)
"""
_RESPONSES = """
DELETE FROM stored_response WHERE tenant = :tenant AND issuer = :issuer AND subject = :subject
"""
_CONVERSATIONS = """
DELETE FROM stored_conversation WHERE tenant = :tenant AND issuer = :issuer AND subject = :subject
"""
# Lines go with their batch, chunks with their file; a line that runs meanwhile finds its lease gone and writes nothing.
_BATCHES = "DELETE FROM batch WHERE tenant = :tenant AND issuer = :issuer AND subject = :subject"
_FILES = "DELETE FROM stored_file WHERE tenant = :tenant AND issuer = :issuer AND subject = :subject"
_OWN = """
UPDATE audit_event SET subject = NULL, personal_salt = NULL, personal = (
    SELECT jsonb_object_agg(value.key, value.value) FROM jsonb_each(personal) AS value WHERE value.key = ANY(:about))
WHERE tenant = :tenant AND issuer = :issuer AND subject = :subject
RETURNING boot_id, node_seq
"""
# A name as a whole word, in any of the values that say what was done or read, to whom and why.
_ABOUT = """
UPDATE audit_event SET personal = NULLIF(personal - CAST(:about AS text[]), '{}'::jsonb)
WHERE tenant = :tenant AND personal ?| CAST(:about AS text[]) AND EXISTS (
    SELECT FROM jsonb_each(personal) AS value WHERE value.key = ANY(:about) AND value.value::text ~ :pattern)
RETURNING boot_id, node_seq
"""
_QUARANTINE = "UPDATE audit_quarantine SET side = NULL WHERE convert_from(side, 'UTF8') ~ :pattern"

RANGES_A_RECORD = 2000

Tell = Callable[[dict[str, Any]], Awaitable[None]]
"""Keeps on record what was erased; durable when it returns. Raises when it cannot, and then nothing is erased."""


@dataclass(frozen=True, slots=True)
class Erased:
    """How many rows were emptied: of the person as caller, of mentions, of content, of refused rows; and how many
    responses, conversations, files and batches that were kept for the person are gone."""

    own: int
    mentions: int
    contents: int
    quarantined: int
    responses: int = 0
    files: int = 0
    batches: int = 0


async def erase(
    engine: AsyncEngine, *, tenant: str, issuer: str, subject: str, also: tuple[str, ...] = (), tell: Tell
) -> Erased:
    """One transaction. `also`: other names of the same person (e-mail, display name) to look for in mentions.

    What still waits in a spool is not reached: run it again once that is shipped.
    """
    person = {"tenant": tenant, "issuer": issuer, "subject": subject, "about": sorted(ABOUT)}
    async with engine.begin() as connection:
        contents = await _count(connection, _CONTENT, person)
        responses, batches, files = [
            await _count(connection, statement, person) for statement in (_RESPONSES, _BATCHES, _FILES)
        ]
        responses += await _count(connection, _CONVERSATIONS, person)
        own = await _emptied(connection, _OWN, person)
        mentions: list[tuple[UUID, int]] = []
        quarantined = 0
        for name in (subject, *also):
            wanted = {**person, "pattern": _pattern(name)}
            mentions += await _emptied(connection, _ABOUT, wanted)
            quarantined += await _count(connection, _QUARANTINE, wanted)
        for group, rows in ((OWN, own), (ABOUT_GROUP, mentions)):
            for facts in facts_of(group, rows):
                await tell(facts)
    return Erased(len(own), len(mentions), contents, quarantined, responses, files, batches)


def facts_of(group: str, rows: Sequence[tuple[UUID, int]]) -> Iterator[dict[str, Any]]:
    """The emptied rows as records name them: the numbers of one chain, so many to a record."""
    numbers: defaultdict[UUID, list[tuple[int, int]]] = defaultdict(list)
    for boot_id, seq in rows:
        numbers[boot_id].append((seq, seq))
    for boot_id, pairs in sorted(numbers.items()):
        ranges = merged(pairs).pairs()
        for start in range(0, len(ranges), RANGES_A_RECORD):
            chain = {"boot": str(boot_id), "ranges": ranges[start : start + RANGES_A_RECORD]}
            yield {"group": group, "chains": [chain]}


async def _emptied(connection: AsyncConnection, statement: str, values: Mapping[str, Any]) -> list[tuple[UUID, int]]:
    found = await connection.execute(sa.text(statement), values)
    return [(UUID(int=boot.int), seq) for boot, seq in found]


async def _count(connection: AsyncConnection, statement: str, values: Mapping[str, Any]) -> int:
    return (await connection.execute(sa.text(statement), values)).rowcount


def _pattern(name: str) -> str:
    """A POSIX regular expression for the name in JSON text, not as part of a longer word."""
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    escaped = "".join(sign if sign.isalnum() else f"\\{sign}" if ord(sign) < 128 else sign for sign in quoted)
    return rf"(^|[^[:alnum:]_]){escaped}($|[^[:alnum:]_])"
