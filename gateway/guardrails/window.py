"""A text that arrives in pieces, let through as soon as nothing in it can belong to something that is still to come.

What is held back is the word that has not ended, together with the groups of digits before it, and a private-key block
until its end: usually a few characters. `LONGEST` bounds it for a "word" that never ends. However a text is cut into
pieces, the same spans are found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gateway.guardrails.detector import BREAKS, GROUPED, IDEOGRAPHS, LONGEST
from gateway.guardrails.folding import folded
from gateway.guardrails.secrets import pem_start
from gateway.guardrails.spans import Span
from gateway.guardrails.timebox import Between

SLICE = 8192
"""Characters per call of a regular expression: while one runs, nothing else does (the interpreter's lock)."""
CONTEXT = 96
"""Characters already let through that a detector may look back at: an announcing word and the gap behind it."""
REACH = GROUPED + 8
"""A grouped span, and the group after it that decides whether it has ended."""
_IDEOGRAPH = re.compile(f"[{IDEOGRAPHS}]")
_GROUP = re.compile(r"[A-Z ]{0,4}|[A-Z0-9.+()\-/ ]*[0-9+(][A-Z0-9.+()\-/ ]*")
"""A group of a number that is written with spaces, or its beginning; a blank is one that does not break a line.
Words of ordinary text are no groups."""
_SIGNS_AT_END = re.compile(r"[A-Z0-9.+()\-/ ]+$")

Scan = Callable[[str], list[Span]]


@dataclass(frozen=True, slots=True)
class Released:
    """What may go now, and the spans in it (ordered, apart from each other, relative to `text`)."""

    text: str
    spans: tuple[Span, ...] = ()


NOTHING = Released("")


class Window:
    """One text. `advance` with each piece, `last` with the final one."""

    def __init__(self, scan: Scan, held: str = "") -> None:
        self._scan = scan
        self._context = ""
        self._held = held
        self._swallowing = False
        """True inside a word so long that its span had to be closed before its end: the rest of it belongs to it."""

    @property
    def held(self) -> str:
        """What was taken in and has not been let through."""
        return self._held

    def advance(self, piece: str, *, last: bool = False) -> Released:
        if self._swallowing:
            piece = self._rest_of_word(piece)
        self._held += piece
        held = self._held
        cut = len(held) if last else safe_cut(held)
        forced = not last and len(held) - cut > 2 * LONGEST
        if forced:
            cut = len(held) - LONGEST
        if cut <= 0:
            return NOTHING
        before = len(self._context)
        spans = []
        for span in self._scan(self._context + held):
            start, end = max(0, span.start - before), span.end - before
            if end <= 0 or start >= cut:
                continue
            if end > cut and forced:
                cut, self._swallowing = len(held), True
            elif end > cut:
                cut = start
                break
            spans.append(Span(start, end, span.category, span.detector, span.certain))
        text, self._held = held[:cut], held[cut:]
        self._context = (self._context + folded(text)[0])[-CONTEXT:]
        return Released(text, tuple(spans)) if text else NOTHING

    def _rest_of_word(self, piece: str) -> str:
        """Past the end of the word, or nothing when the piece does not reach it."""
        ends = [at for at in map(piece.find, BREAKS) if at >= 0]
        self._swallowing = not ends
        return piece[min(ends) :] if ends else ""


def in_slices(window: Window, text: str, between: Between, *, last: bool) -> Iterator[Released]:
    """Put `text` through slice by slice, with a call of `between` before each; it may raise."""
    for at in range(0, max(1, len(text)), SLICE):
        between()
        yield window.advance(text[at : at + SLICE], last=last and at + SLICE >= len(text))


def safe_cut(text: str) -> int:
    """How much of `text` cannot belong to a span that ends, or is decided, after it. Signs that cannot be seen do not
    count, as they do not for the detectors."""
    plain, places = folded(text)
    word = cut = _word_start(plain, len(plain))
    if len(plain) - word <= GROUPED and _GROUP.fullmatch(plain[word:]):
        cut = _first_group(plain, word)
    block = pem_start(plain, 0)
    if block is not None:
        cut = min(cut, block)
    if places is None:
        return cut
    return places[cut] if cut < len(places) else len(text)


def _word_start(text: str, end: int) -> int:
    """Behind the last sign before `end` that no word has."""
    start = max([text.rfind(sign, 0, end) for sign in BREAKS]) + 1
    if text.isascii():
        return start
    return max([found.end() for found in _IDEOGRAPH.finditer(text, start, end)], default=start)


def _first_group(text: str, word: int) -> int:
    """Where the groups begin that the word at `word` may go on. A span's first has a digit, a plus or a bracket."""
    cut, lowest = word, len(text) - REACH
    while word > 0 and text[word - 1] == " ":
        start = _word_start(text, word - 1)
        whole = text[start : word - 1]
        group = _SIGNS_AT_END.search(whole)
        if start < lowest or group is None or not _GROUP.fullmatch(group[0]):
            break
        if group[0][0] in "+(" or any(map(str.isdigit, group[0])):
            cut = start
        if group[0] != whole:
            break  # as in `IBAN:ES91`: what stands before the first group belongs to no number
        word = start
    return cut
