"""Heads of chains: the number and hash that a run of the gateway had reached. Pure.

A head that was named somewhere else (by a later run, by another replica, in a file kept outside) fixes everything of
its chain up to that number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson

from gateway.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Head:
    node_id: str
    boot_id: UUID
    seq: int
    hash: bytes

    def data(self) -> dict[str, Any]:
        return {"node": self.node_id, "boot": str(self.boot_id), "seq": self.seq, "hash": self.hash.hex()}

    def __str__(self) -> str:
        return f"node {self.node_id} boot {self.boot_id} number {self.seq} hash {self.hash.hex()}"


def head_of_data(data: Mapping[str, Any]) -> Head:
    """Raises `KeyError`, `TypeError` or `ValueError`."""
    head = Head(str(data["node"]), UUID(data["boot"]), int(data["seq"]), bytes.fromhex(data["hash"]))
    if len(head.hash) != 32 or head.seq < 1:
        raise ValueError("no head of a chain")
    return head


def newest(heads: Iterable[Head]) -> dict[UUID, Head]:
    """Of each chain the head that reaches furthest."""
    found: dict[UUID, Head] = {}
    for head in heads:
        known = found.get(head.boot_id)
        if known is None or known.seq < head.seq:
            found[head.boot_id] = head
    return found


def parse_kept(text: str, *, source: str) -> tuple[Head, ...]:
    """The heads in what `esclusa audit verify --json` printed earlier. Raises `ConfigError`."""
    try:
        chains = orjson.loads(text)["chains"]
        return tuple(
            head_of_data({"node": one["node_id"], "boot": one["boot_id"], "seq": one["last_seq"], "hash": one["head"]})
            for one in chains
            if one["head"]
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{source} holds no heads of chains ({type(error).__name__})",
            hint="keep what `esclusa audit verify --json` prints, and give that file",
        ) from None
