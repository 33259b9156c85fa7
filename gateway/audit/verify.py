"""Walk the hash chains in Postgres and name what does not fit.

What a damaged spool lost (`lost`) and what Postgres refused (`quarantined`) is told apart: the trail itself holds an
authentic record of it. A row in `audit_quarantine` without one counts as removed.
What it can see: a changed, removed, inserted, reordered or renumbered row, a column that differs from its record, a
personal value that is not the one committed to, or that no erasure on record took out; and of whole chains what later
runs, other replicas, the spool and heads kept outside say: a deleted run, a tail cut off, a chain rewritten, rows
appended to a run that was over. What it cannot: the newest run of all rewritten before another one has named it, and
what is cut off that run where there is no spool to ask.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.audit.canonical import CommitmentKey, genesis, parse_json, storable
from gateway.audit.chain_walker import ChainWalker, Problem
from gateway.audit.columns import DERIVED
from gateway.audit.damage import ACTION, Damage, damage_of
from gateway.audit.evidence import Evidence, gather
from gateway.audit.heads import Head
from gateway.audit.system_event import PHASE, is_authentic
from gateway.audit.tables import audit_event, audit_quarantine, plain

BATCH = 2000


@dataclass(frozen=True, slots=True)
class ChainReport:
    """One boot's chain, from `first_seq` to `last_seq`."""

    node_id: str
    boot_id: UUID
    first_seq: int
    last_seq: int
    checked: int
    problems: tuple[Problem, ...]
    head: str
    """Hash of the last row, hexadecimal: to be kept where whoever writes to the database cannot."""


async def verify(
    engine: AsyncEngine,
    *,
    key: CommitmentKey | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    kept: Sequence[Head] = (),
    shipped: Mapping[UUID, int] | None = None,
    waiting: Mapping[UUID, int] | None = None,
    max_problems: int = 100,
) -> AsyncIterator[ChainReport]:
    """A report for each boot with rows in [start, end); all of time by default. Needs read rights only.

    Without `key` personal values are not compared with their commitments, and records of the trail about itself are
    believed. With `start`, a chain is taken up in the middle; without it, it must begin at number 1. What other runs
    and `kept` heads say is held against all of time only, and so is `shipped`, the last number of each chain that a
    spool says is committed. `waiting`: numbers of chains that still lie in a spool.
    """
    async with engine.connect() as connection:
        await connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        whole_trail = start is None and end is None
        there = {boot_id: seq for boot_id, seq in (shipped or {}).items() if seq and whole_trail}
        damages = await _damages(connection, key)
        evidence = gather(await _system(connection), key, kept)
        if not whole_trail:
            evidence = Evidence(refused=evidence.refused, erased=evidence.erased)
        chains = await _chains(connection, start, end)
        if whole_trail:
            chains = _widened(chains, await _aside(connection))
            known = {boot_id for _, boot_id, _, _ in chains}
            chains += [("-", boot_id, 1, 0) for boot_id in sorted({*damages, *evidence.boots(), *there} - known)]
        for node_id, boot_id, low, high in chains:
            whole = start is None or low == 1
            walker = ChainWalker(
                node_id,
                boot_id,
                key,
                next_seq=1 if whole else low,
                prev_hash=genesis(node_id, boot_id) if whole else None,
                damages=tuple(damages.get(boot_id, ())),
                named=evidence.named.get(boot_id, ()),
                ended=evidence.ended.get(boot_id),
                removed=evidence.removed.get(boot_id, ()),
                refused=evidence.refused.get(boot_id, frozenset()),
                erased=evidence.erased.get(boot_id, {}),
                shipped=there.get(boot_id, 0),
                waiting=(waiting or {}).get(boot_id, 0),
            )
            problems: list[Problem] = []
            async for row in _rows(connection, boot_id, low, high):
                for problem in walker.step(row):
                    if len(problems) < max_problems:
                        problems.append(problem)
            if end is None:
                problems += walker.end()
            if walker.checked or problems:
                head = walker.prev_hash.hex() if walker.checked and walker.prev_hash is not None else ""
                yield ChainReport(node_id, boot_id, low, high, walker.checked, tuple(problems), head)


async def _system(connection: AsyncConnection) -> list[Mapping[str, Any]]:
    found = await connection.execute(sa.select(audit_event.c.rec).where(audit_event.c.phase == PHASE))
    documents: list[Mapping[str, Any]] = []
    for (rec,) in found:
        with contextlib.suppress(ValueError):  # it tells nothing then; the walk names it
            documents.append(parse_json(rec))
    return documents


async def _damages(connection: AsyncConnection, key: CommitmentKey | None) -> dict[UUID, list[Damage]]:
    event = audit_event.c
    found = await connection.execute(
        sa.select(event.rec).where(event.phase == "admin", event.action == ACTION).order_by(event.ts)
    )
    damages: dict[UUID, list[Damage]] = {}
    for (rec,) in found:
        document = parse_json(rec)
        if key is not None and not is_authentic(key, document):
            continue
        damage = damage_of(document)
        if damage not in damages.setdefault(damage.boot_id, []):
            damages[damage.boot_id].append(damage)
    return damages


async def _chains(
    connection: AsyncConnection, start: datetime | None, end: datetime | None
) -> list[tuple[str, UUID, int, int]]:
    event = audit_event.c
    conditions = ([] if start is None else [event.ts >= start]) + ([] if end is None else [event.ts < end])
    found = await connection.execute(
        sa.select(sa.func.min(event.node_id), event.boot_id, sa.func.min(event.node_seq), sa.func.max(event.node_seq))
        .where(*conditions)
        .group_by(event.boot_id)
        .order_by(sa.func.min(event.ts))
    )
    return [(node, UUID(int=boot.int), low, high) for node, boot, low, high in found]


async def _aside(connection: AsyncConnection) -> list[tuple[str, UUID, int, int]]:
    """Like `_chains`, of the rows in the quarantine, whose table names the node that put them there."""
    quarantine = audit_quarantine.c
    low, high = sa.func.min(quarantine.node_seq), sa.func.max(quarantine.node_seq)
    chains: list[tuple[str, UUID, int, int]] = []
    for boot, first, last in (
        await connection.execute(sa.select(quarantine.boot_id, low, high).group_by(quarantine.boot_id))
    ).all():
        rec = sa.select(quarantine.rec).where(quarantine.boot_id == boot).limit(1)
        chains.append((_node((await connection.execute(rec)).scalar_one()), UUID(int=boot.int), first, last))
    return chains


def _node(rec: bytes) -> str:
    """`-` of a record that cannot be read."""
    try:
        return storable(parse_json(rec)["node"]) or "-"
    except (ValueError, KeyError, TypeError):
        return "-"


def _widened(
    chains: list[tuple[str, UUID, int, int]], aside: list[tuple[str, UUID, int, int]]
) -> list[tuple[str, UUID, int, int]]:
    """With the rows that lie in the quarantine before the first and behind the last of each chain, or instead of it."""
    bounds = {boot_id: (node_id, low, high) for node_id, boot_id, low, high in chains}
    for node_id, boot_id, low, high in aside:
        node, first, last = bounds.get(boot_id, (node_id, low, high))
        bounds[boot_id] = (node, min(first, low), max(last, high))
    return [(node_id, boot_id, low, high) for boot_id, (node_id, low, high) in bounds.items()]


async def _rows(connection: AsyncConnection, boot_id: UUID, low: int, high: int) -> AsyncIterator[dict[str, Any]]:
    """Rows of a boot by number, the quarantined ones among them."""
    columns = [audit_event.c[name] for name in (*DERIVED, "node_seq", "subject", "personal", "personal_salt")]
    columns += [audit_event.c.rec, audit_event.c.prev_hash, audit_event.c.hash]
    quarantine = audit_quarantine.c
    kept = await connection.execute(
        sa.select(quarantine.node_seq, quarantine.rec, quarantine.prev_hash, quarantine.hash)
        .where(quarantine.boot_id == boot_id, quarantine.node_seq.between(low, high))
        .order_by(quarantine.node_seq)
    )
    apart = [{**plain(row), "aside": True} for row in kept.mappings()]
    after: tuple[int, UUID] | None = None
    while True:
        statement = (
            sa.select(*columns)
            .where(audit_event.c.boot_id == boot_id, audit_event.c.node_seq.between(low, high))
            .order_by(audit_event.c.node_seq, audit_event.c.event_id)
            .limit(BATCH)
        )
        if after is not None:
            statement = statement.where(
                sa.tuple_(audit_event.c.node_seq, audit_event.c.event_id) > sa.tuple_(after[0], after[1])
            )
        batch = [{**plain(row), "aside": False} for row in (await connection.execute(statement)).mappings()]
        for row in batch:
            while apart and apart[0]["node_seq"] <= row["node_seq"]:
                yield apart.pop(0)
            yield row
        if len(batch) < BATCH:
            break
        after = (batch[-1]["node_seq"], batch[-1]["event_id"])
    for row in apart:
        yield row
