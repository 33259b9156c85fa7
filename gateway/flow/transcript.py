"""The record of what has left of an answer: a digest that commits to it, and its parts where policy keeps them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.flow.deltas import DELTAS, content_of, deltas_from
from gateway.flow.parts import Content
from gateway.flow.values import Delta, TextDelta, ToolCallDelta


@dataclass(slots=True)
class HashedPart:
    """All that one choice has of one kind, or one call of it."""

    call_id: str = ""
    name: str = ""
    digest: Any = field(default_factory=hashlib.sha256)

    def committed(self, choice: int, kind: str) -> bytes:
        named = [piece for text in (self.call_id, self.name) for piece in (str(len(text)), text)]
        head = "\x1f".join([f"\x1e{choice}", kind, *named, ""])
        return head.encode("utf-8", "surrogatepass") + bytes(self.digest.digest())


class Transcript:
    """Fed every delta that leaves, in order.

    The digest of an answer that is text alone is that of its text, of all choices as it came. Any other's is made of a
    digest of each kind of part of each choice, and of each call with its id and function: it comes out of the messages
    that the caller has got, however they came.
    """

    def __init__(self, *, keep: bool) -> None:
        self._kept: dict[int, list[Delta]] | None = {} if keep else None
        self._text = hashlib.sha256()
        self._parts: dict[tuple[int, str, int], HashedPart] = {}
        """By choice, kind and call."""
        self._plain = True

    def add(self, delta: Delta) -> None:
        if delta.is_empty:
            return
        raw = delta.text.encode()
        if not self._parts and type(delta) is TextDelta and not delta.index:
            self._text.update(raw)
        else:
            self._add_part(delta, raw)
        if self._kept is not None:
            self._kept.setdefault(delta.index, []).append(delta)

    def _add_part(self, delta: Delta, raw: bytes) -> None:
        if not self._parts:
            # All so far was text of the first choice, whose digest is that of the whole; maybe none.
            self._parts[0, _TEXT, 0] = HashedPart(digest=self._text.copy())
        if type(delta) is TextDelta:
            self._text.update(raw)
        else:
            self._plain = False
        self._part_of(delta).digest.update(raw)

    def digest(self) -> bytes:
        if self._plain:
            return self._text.digest()
        parts = [
            part.committed(choice, kind)
            for (choice, kind, _), part in sorted(self._parts.items(), key=lambda item: item[0])
        ]
        return hashlib.sha256(b"parts" + b"".join(parts)).digest()

    @property
    def calls(self) -> int:
        """How many calls of tools there are in it."""
        return sum(kind == _CALL for _, kind, _ in self._parts)

    def contents(self) -> tuple[Content, ...] | None:
        """By choice; None where nothing is kept."""
        kept = self._kept
        if kept is None:
            return None
        return tuple([content_of(kept.get(index, ())) for index in range(max(kept, default=-1) + 1)])

    def _part_of(self, delta: Delta) -> HashedPart:
        place = (delta.index, DELTAS[type(delta)].name, delta.call if isinstance(delta, ToolCallDelta) else 0)
        part = self._parts.get(place)
        if part is None:
            part = self._parts[place] = HashedPart()
            if isinstance(delta, ToolCallDelta):
                part.call_id, part.name = delta.call_id or "", delta.name or ""
        return part


_CALL, _TEXT = DELTAS[ToolCallDelta].name, DELTAS[TextDelta].name


def response_digest(choices: Sequence[Content]) -> bytes:
    """Of an answer that somebody has got, by choice."""
    transcript = Transcript(keep=False)
    for index, content in enumerate(choices):
        for delta in deltas_from(content, index):
            transcript.add(delta)
    return transcript.digest()
