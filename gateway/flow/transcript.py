"""The record of what has left of an answer: a digest that commits to it, and its parts where policy keeps them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.flow.deltas import DELTAS, content_of
from gateway.flow.parts import Content
from gateway.flow.values import Delta, TextDelta, ToolCallDelta


@dataclass(slots=True)
class HashedPart:
    """A part of an answer that is not text alone."""

    choice: int
    first: Delta
    digest: Any = field(default_factory=hashlib.sha256)

    def committed(self) -> bytes:
        call_id, name = "", ""
        if isinstance(self.first, ToolCallDelta):
            call_id, name = self.first.call_id or "", self.first.name or ""
        kind = DELTAS[type(self.first)].name
        head = f"\x1e{self.choice}\x1f{kind}\x1f{len(call_id)}\x1f{call_id}\x1f{len(name)}\x1f{name}\x1f"
        return head.encode("utf-8", "surrogatepass") + bytes(self.digest.digest())


class Transcript:
    """Fed every delta that leaves, in order.

    The digest of an answer that is text alone is that of its text. From the first delta of another kind on, each part
    has a digest of its own, and the whole is the digest of those, with which choice, kind, call and function each is.
    """

    def __init__(self, *, keep: bool) -> None:
        self._kept: dict[int, list[Delta]] | None = {} if keep else None
        self._text = hashlib.sha256()
        self._parts: list[HashedPart] = []
        self._latest: dict[int, HashedPart] = {}

    def add(self, delta: Delta) -> None:
        if delta.is_empty:
            return
        if self._parts or type(delta) is not TextDelta:
            self._part_of(delta).digest.update(delta.text.encode())
        else:
            self._text.update(delta.text.encode())
        if self._kept is not None:
            self._kept.setdefault(delta.index, []).append(delta)

    def digest(self) -> bytes:
        if not self._parts:
            return self._text.digest()
        parts = b"".join([part.committed() for part in self._parts])
        return hashlib.sha256(b"parts\x1f" + self._text.digest() + parts).digest()

    @property
    def calls(self) -> int:
        """How many calls of tools there are in it."""
        return sum(isinstance(part.first, ToolCallDelta) for part in self._parts)

    def contents(self) -> tuple[Content, ...] | None:
        """By choice; None where nothing is kept."""
        kept: Mapping[int, list[Delta]] | None = self._kept
        if kept is None:
            return None
        return tuple([content_of(kept.get(index, ())) for index in range(max(kept, default=-1) + 1)])

    def _part_of(self, delta: Delta) -> HashedPart:
        latest = self._latest.get(delta.index)
        if latest is None or not delta.goes_on(latest.first):
            latest = self._latest[delta.index] = HashedPart(delta.index, delta)
            self._parts.append(latest)
        return latest
