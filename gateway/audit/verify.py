"""Walk the hash chains in Postgres and name what does not fit. Pure over frames; one query feeds it.

What a damaged spool lost is told apart (`lost`): the trail itself holds a record of it.
What it can see: a changed, removed, inserted, reordered or renumbered row, a column that differs from its record, a
personal value that is not the one committed to. What it cannot: rows cut off the end of a chain, unless a later record
or an outside copy tells of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.audit.canonical import CommitmentKey, chain_hash, genesis, parse_json
from gateway.audit.columns import DERIVED, derive
from gateway.audit.committed import differing
from gateway.audit.damage import ACTION, Damage, covers, damage_of
from gateway.audit.tables import audit_event, audit_quarantine, plain

BATCH = 2000


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that does not fit. `kind`: missing, lost, duplicate, broken_link, hash_mismatch, unreadable,
    column_mismatch or personal_mismatch; `detail` never holds a value of the record."""

    kind: str
    boot_id: UUID
    node_id: str
    node_seq: int
    event_id: UUID | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ChainReport:
    """One boot's chain, from `first_seq` to `last_seq`."""

    node_id: str
    boot_id: UUID
    first_seq: int
    last_seq: int
    checked: int
    problems: tuple[Problem, ...]


@dataclass(slots=True)
class ChainWalker:
    """Takes the rows of one boot in order of `node_seq`; gives the problems of each."""

    node_id: str
    boot_id: UUID
    key: CommitmentKey | None
    next_seq: int
    prev_hash: bytes | None
    """None: the walk starts in the middle and trusts the first row's link."""
    damages: tuple[Damage, ...] = ()
    """What the trail says was lost of this boot."""
    checked: int = 0

    def step(self, row: Mapping[str, Any]) -> Iterator[Problem]:
        seq = row["node_seq"]
        self.checked += 1
        if seq < self.next_seq:
            yield self._problem("duplicate", row, "this number was taken by an earlier row")
            return
        if seq > self.next_seq:
            kind = "lost" if covers(self.damages, self.next_seq, seq - 1) else "missing"
            yield Problem(
                kind, self.boot_id, self.node_id, self.next_seq, detail=f"{seq - self.next_seq} rows up to {seq}"
            )
        elif self.prev_hash is not None and row["prev_hash"] != self.prev_hash:
            yield self._problem("broken_link", row, "prev_hash is not the hash of the row before")
        if row["hash"] != chain_hash(row["prev_hash"], seq, row["rec"]):
            yield self._problem("hash_mismatch", row, "the record is not what was hashed")
        else:
            yield from self._compare(row)
        self.next_seq, self.prev_hash = seq + 1, row["hash"]

    def end(self) -> Iterator[Problem]:
        """What was lost behind the last row."""
        for damage in self.damages:
            if damage.records != 0 and (damage.first_seq is None or damage.first_seq >= self.next_seq):
                yield Problem("lost", self.boot_id, self.node_id, damage.first_seq or self.next_seq, detail=str(damage))

    def _compare(self, row: Mapping[str, Any]) -> Iterator[Problem]:
        if "event_id" not in row:
            return
        try:
            document = parse_json(row["rec"])
            expected = dict(zip(DERIVED, derive(document), strict=True))
        except (KeyError, TypeError, ValueError) as error:
            yield self._problem("unreadable", row, type(error).__name__)
            return
        changed = [name for name, value in expected.items() if row[name] != value]
        if changed:
            yield self._problem("column_mismatch", row, ", ".join(changed))
        for names in differing(document, row, self.key):
            yield self._problem("personal_mismatch", row, names)

    def _problem(self, kind: str, row: Mapping[str, Any], detail: str) -> Problem:
        return Problem(kind, self.boot_id, self.node_id, row["node_seq"], row.get("event_id"), detail)


async def verify(
    engine: AsyncEngine,
    *,
    key: CommitmentKey | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    max_problems: int = 100,
) -> AsyncIterator[ChainReport]:
    """A report for each boot with rows in [start, end); all of time by default. Needs read rights only.

    Without `key` personal values are not compared with their commitments. With `start`, a chain is taken up in the
    middle; without it, it must begin at number 1.
    """
    async with engine.connect() as connection:
        await connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        damages = await _damages(connection)
        chains = await _chains(connection, start, end)
        if start is None and end is None:
            known = {boot_id for _, boot_id, _, _ in chains}
            chains += [("-", boot_id, 1, 0) for boot_id in damages if boot_id not in known]
        for node_id, boot_id, low, high in chains:
            whole = start is None or low == 1
            walker = ChainWalker(
                node_id,
                boot_id,
                key,
                next_seq=1 if whole else low,
                prev_hash=genesis(node_id, boot_id) if whole else None,
                damages=tuple(damages.get(boot_id, ())),
            )
            problems: list[Problem] = []
            async for row in _rows(connection, boot_id, low, high):
                for problem in walker.step(row):
                    if len(problems) < max_problems:
                        problems.append(problem)
            if end is None:
                problems += walker.end()
            yield ChainReport(node_id, boot_id, low, high, walker.checked, tuple(problems))


async def _damages(connection: AsyncConnection) -> dict[UUID, list[Damage]]:
    event = audit_event.c
    found = await connection.execute(
        sa.select(event.rec).where(event.phase == "admin", event.action == ACTION).order_by(event.ts)
    )
    damages: dict[UUID, list[Damage]] = {}
    for (rec,) in found:
        damage = damage_of(parse_json(rec))
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
    apart = [plain(row) for row in kept.mappings()]
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
        batch = [plain(row) for row in (await connection.execute(statement)).mappings()]
        for row in batch:
            while apart and apart[0]["node_seq"] <= row["node_seq"]:
                yield apart.pop(0)
            yield row
        if len(batch) < BATCH:
            break
        after = (batch[-1]["node_seq"], batch[-1]["event_id"])
    for row in apart:
        yield row
