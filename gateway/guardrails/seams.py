"""Findings that span the end of one message and the beginning of the next. Pure.

A model reads a conversation as one text: a number that is cut in two messages is whole to it, and a word that announces
a number may stand in the message before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gateway.guardrails.detectors.form import GROUPED
from gateway.guardrails.spans import Span
from gateway.guardrails.window import safe_cut

TAIL = 192
"""Characters of a message that may belong to what goes on in the next."""
HEAD = GROUPED + 40
MOST = 40
"""Messages that one number may be written over: a digit in each."""

Scan = Callable[[str], list[Span]]


@dataclass(frozen=True, slots=True)
class Part:
    """`texts[index][start:end]` is the part of `span` in one message."""

    index: int
    start: int
    end: int
    span: Span


def seams(
    texts: Sequence[str], groups: Sequence[str], scan: Scan, check_deadline: Callable[[], None]
) -> Iterator[tuple[Part, ...]]:
    """Spans over messages that follow each other, and over those of one group (a role) with others between.

    `check_deadline` is called before each message; it may raise.
    """
    for index in range(len(texts) - 1):
        check_deadline()
        tail = texts[index][-TAIL:]
        if not tail or safe_cut(tail + "\n") > len(tail):
            continue
        following = list(range(index + 1, min(len(texts), index + MOST)))
        yield from _over(texts, (index, *following), scan)
        same = [other for other in following if groups[other] == groups[index]]
        if same and same[0] != index + 1:
            yield from _over(texts, (index, *same), scan)


@dataclass(frozen=True, slots=True)
class _Piece:
    """`texts[index][skipped:]`, or its beginning, as it stands at `start` in the joined text."""

    index: int
    start: int
    skipped: int
    text: str


def _over(texts: Sequence[str], order: Sequence[int], scan: Scan) -> Iterator[tuple[Part, ...]]:
    """Spans that begin in the first message of `order`, or are found in the next because of it."""
    pieces = list(_pieces(texts, order))
    border, second = pieces[1].start - 1, pieces[1]
    alone = {(span.start + second.start, span.end + second.start) for span in scan(second.text)}
    for span in scan("".join([piece.text + "\n" for piece in pieces])):
        begins_before = span.start < border
        if span.end <= border or (not begins_before and (span.start, span.end) in alone):
            continue
        parts = tuple(_parts(pieces, span))
        if parts and (begins_before or parts[0].index == second.index):
            yield parts


def _pieces(texts: Sequence[str], order: Sequence[int]) -> Iterator[_Piece]:
    """The end of the first message and what follows it, up to the first message that is not short."""
    start = border = 0
    for place, index in enumerate(order):
        text = texts[index]
        skipped = 0 if place else max(0, len(text) - TAIL)
        piece = _Piece(index, start, skipped, text[:HEAD] if place else text[skipped:])
        yield piece
        start += len(piece.text) + 1
        border = start if place == 0 else border
        if place and (len(text) > HEAD or start > border + HEAD):
            return


def _parts(pieces: Sequence[_Piece], span: Span) -> Iterator[Part]:
    for piece in pieces:
        start, end = max(span.start, piece.start), min(span.end, piece.start + len(piece.text))
        if start < end:
            moved = piece.skipped - piece.start
            yield Part(piece.index, start + moved, end + moved, span)
