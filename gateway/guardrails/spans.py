"""Spans of findings in a text, and the text without them. Pure; knows no pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

_QUOTES = re.compile(r'\\.|"', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Span:
    """`text[start:end]` is of `category`. `certain`: its form or its check digits prove it; else it only looks so."""

    start: int
    end: int
    category: str
    detector: str
    certain: bool = True


def merged(spans: Iterable[Span]) -> list[Span]:
    """In order and apart: what overlaps becomes one, named by its most certain part, then by the first given."""
    found: list[Span] = []
    best = (False, 0)
    for order, span in sorted(enumerate(spans), key=lambda item: item[1].start):
        rank = (span.certain, -order)
        if not found or span.start >= found[-1].end:
            found.append(span)
            best = rank
            continue
        last = found[-1]
        named = span if rank > best else last
        best = max(rank, best)
        found[-1] = replace(named, start=last.start, end=max(last.end, span.end))
    return found


def mark(category: str) -> str:
    """The placeholder of a removed span, `[ES_NIF]`; holds nothing that JSON would have to escape."""
    return f"[{category.upper()}]"


def without(text: str, spans: Iterable[Span]) -> str:
    """The text with a mark for each of the (non-overlapping, ordered) spans."""
    pieces, at = list[str](), 0
    for span in spans:
        pieces += (text[at : span.start], mark(span.category))
        at = span.end
    pieces.append(text[at:])
    return "".join(pieces)


class JsonText:
    """JSON that comes in pieces, and stays JSON when spans are taken out of it."""

    def __init__(self) -> None:
        self._quoted = False
        """Inside a string."""

    def without(self, text: str, spans: Iterable[Span]) -> str:
        """As `without`, with `null` for a span that stands in no string. A span that begins inside an escape
        (`\\nana@...`) leaves the escape whole."""
        pieces, at = list[str](), 0
        for span in spans:
            before = text[at : _past_escape(text, span.start)]
            self.read(before)
            pieces += (before, mark(span.category) if self._quoted else "null")
            at = span.end
        self.read(text[at:])
        pieces.append(text[at:])
        return "".join(pieces)

    def read(self, text: str) -> None:
        self._quoted ^= sum(found == '"' for found in _QUOTES.findall(text)) % 2 == 1


def _past_escape(text: str, start: int) -> int:
    if (len(text[:start]) - len(text[:start].rstrip("\\"))) % 2 == 1:
        return start + (5 if text[start] == "u" else 1)
    return start
