"""Evidence that the trail holds about itself, gathered before its chains are walked.

Heads that runs named of each other, ends of runs, what retention removed, what Postgres refused and what was erased.
Only what is authentic counts; what is not is a problem of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from gateway.audit.canonical import CommitmentKey
from gateway.audit.heads import Head, head_of_data, newest
from gateway.audit.ranges import Ranges, merged
from gateway.audit.system_event import ERASE, REFUSED, RETAIN, SEAL, START, is_authentic


@dataclass(frozen=True, slots=True)
class Removed:
    """Numbers [first, last] of a chain that retention removed; `hash` is that of `last`."""

    boot_id: UUID
    first: int
    last: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class Evidence:
    """`named`: heads that must be there, by chain. `ended`: the last record of chains that are over."""

    named: Mapping[UUID, tuple[Head, ...]] = field(default_factory=dict)
    ended: Mapping[UUID, Head] = field(default_factory=dict)
    removed: Mapping[UUID, tuple[Removed, ...]] = field(default_factory=dict)
    refused: Mapping[UUID, Set[tuple[int, bytes]]] = field(default_factory=dict)
    """Numbers and hashes of the rows that a gateway has put aside, by chain."""
    erased: Mapping[UUID, Mapping[str, Ranges]] = field(default_factory=dict)
    """Rows that `erase` has emptied, by chain and group of values."""

    def boots(self) -> set[UUID]:
        return {*self.named, *self.ended}


def removed_of(facts: Mapping[str, Any]) -> list[Removed]:
    """Raises `KeyError`, `TypeError` or `ValueError`."""
    return [
        Removed(UUID(chain["boot"]), int(first), int(last), bytes.fromhex(hashed))
        for chain in facts["chains"]
        for first, last, hashed in chain["ranges"]
    ]


def gather(documents: Iterable[Mapping[str, Any]], key: CommitmentKey | None, kept: Sequence[Head]) -> Evidence:
    """`kept` are heads from outside. Documents that cannot be read or are not authentic tell nothing."""
    named, ended, removed = list[Head](), list[Head](), list[Removed]()
    refused: defaultdict[UUID, set[tuple[int, bytes]]] = defaultdict(set)
    erased: defaultdict[UUID, defaultdict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for document in documents:
        if key is not None and not is_authentic(key, document):
            continue
        try:
            action, facts = document["what"]["action"], document["system"]
            if action == START:
                ended += map(head_of_data, facts["previous"])
                named += map(head_of_data, facts["known"] or ())
            elif action == SEAL:
                named += map(head_of_data, facts["heads"])
            elif action == RETAIN:
                removed += removed_of(facts)
            elif action == REFUSED:
                row = head_of_data(facts["row"])
                refused[row.boot_id].add((row.seq, row.hash))
            elif action == ERASE:
                for chain in facts["chains"]:
                    ranges = [(int(first), int(last)) for first, last in chain["ranges"]]
                    erased[UUID(chain["boot"])][facts["group"]] += ranges
        except (KeyError, TypeError, ValueError):
            continue
    gone: dict[UUID, tuple[Removed, ...]] = {}
    for one in sorted(removed, key=lambda range_: (range_.boot_id, range_.first, range_.last)):
        if one not in gone.get(one.boot_id, ()):
            gone[one.boot_id] = (*gone.get(one.boot_id, ()), one)
    emptied = {boot: {group: merged(pairs) for group, pairs in groups.items()} for boot, groups in erased.items()}
    # Of what the trail itself names, the furthest head of a chain fixes all of it; of what was kept, each is answered.
    chains = newest([*named, *ended])
    expected = {boot_id: (head,) for boot_id, head in chains.items()}
    for head in kept:
        if head not in expected.get(head.boot_id, ()):
            expected[head.boot_id] = (*expected.get(head.boot_id, ()), head)
    return Evidence(expected, newest(ended), gone, refused, emptied)
