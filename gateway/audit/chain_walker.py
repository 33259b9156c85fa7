"""One hash chain, walked row by row. Pure: takes rows, gives what does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from gateway.audit.canonical import CommitmentKey, chain_hash, parse_json
from gateway.audit.columns import DERIVED, derive
from gateway.audit.committed import differing, emptied
from gateway.audit.damage import ACTION as DAMAGE
from gateway.audit.damage import Damage, covers
from gateway.audit.evidence import Removed
from gateway.audit.heads import Head
from gateway.audit.ranges import Ranges
from gateway.audit.system_event import PHASE, START, is_authentic

ERASURE_ON_RECORD = 3
"""Schema of a record from which on what erases its values names it. Those of older ones went without a word."""
TOLD = frozenset({"lost", "quarantined"})
"""Kinds that an authentic record of the trail itself accounts for."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that does not fit; `detail` never holds a value of the record.

    `kind` of a row: missing, lost, quarantined, duplicate, broken_link, hash_mismatch, unreadable, column_mismatch,
    personal_mismatch, erased_without_record, no_start, not_authentic. Of a chain, by what other runs, a spool or an
    outside copy say of it: missing_run, cut_tail, head_mismatch, appended.
    """

    kind: str
    boot_id: UUID
    node_id: str
    node_seq: int
    event_id: UUID | None = None
    detail: str = ""


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
    """The losses of this run that are on record."""
    named: tuple[Head, ...] = ()
    """Heads of this chain that are known from elsewhere."""
    ended: Head | None = None
    """The end of this run as a later run recorded it."""
    removed: tuple[Removed, ...] = ()
    """The records that retention removed."""
    refused: Set[tuple[int, bytes]] = frozenset()
    """Numbers and hashes of its rows that a gateway says it has put aside."""
    erased: Mapping[str, Ranges] = field(default_factory=dict)
    """Numbers of the rows that an erasure says it has emptied, by group of values."""
    shipped: int = 0
    """A spool that the caller knows says that the numbers up to this one were committed."""
    waiting: int = 0
    """Numbers up to this one may still wait in a spool that the caller knows."""
    checked: int = 0

    def step(self, row: Mapping[str, Any]) -> Iterator[Problem]:
        seq = row["node_seq"]
        self.checked += 1
        if seq < self.next_seq:
            yield self._problem("duplicate", row, "this number was taken by an earlier row")
            return
        self._pass_removed(seq)
        if seq > self.next_seq:
            kind = "lost" if covers(self.damages, self.next_seq, seq - 1) else "missing"
            yield Problem(
                kind, self.boot_id, self.node_id, self.next_seq, detail=f"{seq - self.next_seq} rows up to {seq}"
            )
        elif self.prev_hash is not None and row["prev_hash"] != self.prev_hash:
            yield self._problem("broken_link", row, "prev_hash is not the hash of the row before")
        if row["aside"]:
            yield self._quarantined(row)
        if row["hash"] != chain_hash(row["prev_hash"], seq, row["rec"]):
            yield self._problem("hash_mismatch", row, "the record is not what was hashed")
        elif not row["aside"]:
            yield from self._compare(row)
        for head in self.named:
            if head.seq == seq and head.hash != row["hash"]:
                yield self._problem("head_mismatch", row, "another hash of this number is known: rewritten up to here")
        self.next_seq, self.prev_hash = seq + 1, row["hash"]

    def end(self) -> Iterator[Problem]:
        """Check the rows behind the last one: those that must be there, and those that must not."""
        self._pass_removed(None)
        reached = max([head.seq for head in (*self.named, *filter(None, [self.ended]))], default=0)
        # What waits in a spool may be behind what others name of the chain, never behind what was committed.
        reached = max(self.shipped, reached if self.waiting < reached else 0)
        if reached >= self.next_seq and not covers(self.damages, self.next_seq, reached):
            kind = "cut_tail" if self.next_seq > 1 else "missing_run"
            detail = f"{reached - self.next_seq + 1} rows up to {reached} are known to have been there"
            yield Problem(kind, self.boot_id, self.node_id, self.next_seq, detail=detail)
        if self.ended is not None and self.next_seq > self.ended.seq + 1:
            detail = f"the run ended with {self.ended.seq}, as a later one says"
            yield Problem("appended", self.boot_id, self.node_id, self.ended.seq + 1, detail=detail)
        for damage in self.damages:
            if damage.records != 0 and (damage.first_seq is None or damage.first_seq >= self.next_seq):
                yield Problem("lost", self.boot_id, self.node_id, damage.first_seq or self.next_seq, detail=str(damage))

    def _pass_removed(self, upto: int | None) -> None:
        """Over the numbers that retention took out, as far as the next row that is there."""
        for one in self.removed:
            if one.first <= self.next_seq <= one.last and (upto is None or one.last < upto):
                self.next_seq, self.prev_hash = one.last + 1, one.hash

    def _compare(self, row: Mapping[str, Any]) -> Iterator[Problem]:
        try:
            document = parse_json(row["rec"])
            expected = dict(zip(DERIVED, derive(document), strict=True))
        except (KeyError, TypeError, ValueError) as error:
            yield self._problem("unreadable", row, type(error).__name__)
            return
        changed = [name for name, value in expected.items() if row[name] != value]
        if changed:
            yield self._problem("column_mismatch", row, ", ".join(changed))
        yield from self._compare_system(row, document)
        for names in differing(document, row, self.key):
            yield self._problem("personal_mismatch", row, names)
        if document["schema"] >= ERASURE_ON_RECORD:
            for group in emptied(document, row):
                if row["node_seq"] not in self.erased.get(group, Ranges()):
                    yield self._problem("erased_without_record", row, f"values of the group {group!r} are gone")

    def _compare_system(self, row: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[Problem]:
        ours = row["phase"] == PHASE or document.get("what", {}).get("action") == DAMAGE
        if ours and self.key is not None and not is_authentic(self.key, document):
            yield self._problem("not_authentic", row, "not written by a gateway that has the commitment key")
        is_start = row["phase"] == PHASE and document["what"]["action"] == START
        # Chains of before this was so begin with any record.
        if row["node_seq"] == 1 and document["schema"] > 1 and not is_start:
            yield self._problem("no_start", row, "the first record of a run names those before it")

    def _quarantined(self, row: Mapping[str, Any]) -> Problem:
        """Nobody is shown a row there: who moves one hides it, so that the table alone proves nothing."""
        if (row["node_seq"], row["hash"]) in self.refused:
            return self._problem("quarantined", row, "Postgres refused it; it lies in audit_quarantine")
        return self._problem("missing", row, "it lies in audit_quarantine, and no gateway says that it put it there")

    def _problem(self, kind: str, row: Mapping[str, Any], detail: str) -> Problem:
        return Problem(kind, self.boot_id, self.node_id, row["node_seq"], row.get("event_id"), detail)
