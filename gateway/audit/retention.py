"""Removing records that are older than they are kept: whole months, each after a record that tells what it held.

The record names the numbers of every chain that go and the hash of the last of them, so that `verify` goes on from
there and tells retention from deletion. One process at a time; needs `EXECUTE` on `audit_drop_expired`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.audit.shipper import OUTAGE
from gateway.flow.context import Clock

log = logging.getLogger("esclusa.audit")

QUARANTINE = "audit_quarantine"
CHAINS_A_RECORD = 500
EVERY_S = 3600.0
LOCK = 0x45534C5541524554
"""Key of the advisory lock: the letters ESLUARET."""

_PARTS = text("""
SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
WHERE inhparent = 'audit_event'::regclass AND relname ~ '^audit_event_[0-9]{4}_[0-9]{2}$' ORDER BY relname
""")
_MAY = text("SELECT has_function_privilege('audit_drop_expired(text, timestamptz)', 'EXECUTE')")
# Runs of numbers without a gap. What came before the first row of a chain that is left was removed earlier.
_RANGES = """
WITH numbered AS (
    SELECT node_id, boot_id, node_seq, node_seq - row_number() OVER (PARTITION BY boot_id ORDER BY node_seq) AS island
    FROM {part} AS part WHERE {condition}
), ranges AS (
    SELECT min(node_id) AS node_id, boot_id, min(node_seq) AS first, max(node_seq) AS last
    FROM numbered GROUP BY boot_id, island
)
SELECT ranges.node_id, ranges.boot_id, ranges.last, part.hash,
    CASE WHEN EXISTS (SELECT FROM audit_event WHERE boot_id = ranges.boot_id AND node_seq < ranges.first)
           OR EXISTS (SELECT FROM audit_quarantine WHERE boot_id = ranges.boot_id AND node_seq < ranges.first)
         THEN ranges.first ELSE 1 END AS first
FROM ranges JOIN {part} AS part ON part.boot_id = ranges.boot_id AND part.node_seq = ranges.last
ORDER BY ranges.boot_id, first
"""

Tell = Callable[[dict[str, Any]], Awaitable[None]]
"""Writes the record of what is about to be removed; returns once it is in Postgres. Raises when it cannot be."""


@dataclass(frozen=True, slots=True)
class Expired:
    """A month of the trail, or the refused rows, past the time that they are kept."""

    part: str
    rows: int
    chains: tuple[dict[str, Any], ...]


async def find_expired(engine: AsyncEngine, before: datetime) -> list[Expired]:
    async with engine.connect() as connection:
        parts = [name for (name,) in await connection.execute(_PARTS) if _end_of(name) <= before]
        found = [await _expired(connection, part, "true", before) for part in parts]
        refused = await _expired(connection, QUARANTINE, "quarantined_at < :before", before)
    return [*found, *([refused] if refused.rows else [])]


async def remove_expired(engine: AsyncEngine, before: datetime, tell: Tell) -> list[Expired]:
    """Tell of and remove everything older than `before`; empty when another process is at it, or we may not."""
    async with engine.connect() as holder:
        if not (await holder.execute(_MAY)).scalar_one():
            return []
        if not (await holder.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": LOCK})).scalar_one():
            return []
        try:
            found = await find_expired(engine, before)
            for one in found:
                for start in range(0, max(1, len(one.chains)), CHAINS_A_RECORD):
                    chains = list(one.chains[start : start + CHAINS_A_RECORD])
                    await tell({"part": one.part, "before": before, "rows": one.rows, "chains": chains})
                await _drop(engine, one.part, before)
                log.info("audit records removed after their time: %s, %d rows", one.part, one.rows)
        finally:
            await holder.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": LOCK})
    return found


async def keep_removing(engine: AsyncEngine, clock: Clock, keep: timedelta, tell: Tell) -> None:
    """Once an hour, for ever, where our role may: elsewhere `esclusa audit retain` is run by one that may."""
    while True:
        await asyncio.sleep(EVERY_S)
        try:
            await remove_expired(engine, clock.now() - keep, tell)
        except OUTAGE as error:
            log.warning("audit records past their time are not removed now: %s", type(error).__name__)


async def _expired(connection: AsyncConnection, part: str, condition: str, before: datetime) -> Expired:
    values = {"before": before} if ":before" in condition else {}
    count = text(f"SELECT count(*) FROM {part} WHERE {condition}")
    rows = (await connection.execute(count, values)).scalar_one()
    ranges = (await connection.execute(text(_RANGES.format(part=part, condition=condition)), values)).mappings().all()
    chains = [
        {
            "node": node,
            "boot": str(boot),
            "ranges": [[one["first"], one["last"], bytes(one["hash"]).hex()] for one in group],
        }
        for (boot, node), group in groupby(ranges, key=lambda one: (one["boot_id"], one["node_id"]))
    ]
    return Expired(part, rows, tuple(chains))


async def _drop(engine: AsyncEngine, part: str, before: datetime) -> None:
    async with engine.begin() as connection:
        await connection.execute(text("SELECT audit_drop_expired(:part, :before)"), {"part": part, "before": before})


def _end_of(part: str) -> datetime:
    year, month = int(part[-7:-3]), int(part[-2:])
    return datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
