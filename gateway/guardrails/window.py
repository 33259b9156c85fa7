"""A text that arrives in pieces, let through as soon as nothing in it can belong to something that is still to come.

What is held back is the word that has not ended, together with the groups of digits before it, and a private-key block
until its end: usually a few characters. `LONGEST` bounds it for a "word" that never ends. However a text is cut into
pieces, the same spans are found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gateway.guardrails.detectors.email import email_start
from gateway.guardrails.detectors.form import BREAKS, GROUPED, IDEOGRAPHS, LONGEST
from gateway.guardrails.detectors.groups import LETTERS, LEVELS, MOST_BETWEEN, flattened, grouped
from gateway.guardrails.detectors.secrets import key_start, pem_start
from gateway.guardrails.folding import last_readable, readings
from gateway.guardrails.spans import Span
from gateway.guardrails.timebox import Between

SLICE = 8192
"""Characters per call of a regular expression: while one runs, nothing else does (the interpreter's lock)."""
CONTEXT = 224
"""Characters already let through that a detector may look back at: an announcing word and the gap behind it, and as
much of a long row of groups as tells that it is none."""
REACH = GROUPED + 40
"""Flat characters of a row of groups that is not decided yet."""
_SHORT_TAIL, _TAIL = 192, 2048
"""Characters from which the groups at the end are read: usually, and with the widest gaps that are one separator."""
_CLOSES = re.compile(r"[^\W_]|[@%€$#?!]")
_SPOKEN = re.compile(r"\b(?:[Ll]etra|[Ll]etter)\b")
_IDEOGRAPH = re.compile(f"[{IDEOGRAPHS}]")
_OPEN_TAG = re.compile(r"<[A-Za-z/!][^<>]{0,26}$|<$")
_OPEN_MOVEMENT = re.compile(r"\x1b(?:\[[0-9;]{0,16})?$")
"""A movement of a terminal that has not ended."""
_BEFORE = re.compile(r"[+(][ (+]{0,2}$")
"""What may stand before the first digit of a telephone number."""

Scan = Callable[[str], list[Span]]


@dataclass(frozen=True, slots=True)
class Released:
    """The text to release now, and the spans in it (ordered, apart from each other, relative to `text`)."""

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
        """The text that was taken in and not yet released."""
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
        self._context = last_readable(self._context + text, CONTEXT)
        return Released(text, tuple(spans)) if text else NOTHING

    def _rest_of_word(self, piece: str) -> str:
        """Past the end of the word, or nothing when the piece does not reach it."""
        ends = [at for at in map(piece.find, BREAKS) if at >= 0]
        self._swallowing = not ends
        return piece[min(ends) :] if ends else ""


def in_slices(window: Window, text: str, check_deadline: Between, *, last: bool) -> Iterator[Released]:
    """Put `text` through slice by slice, with a call of `check_deadline` before each; it may raise."""
    for at in range(0, max(1, len(text)), SLICE):
        check_deadline()
        yield window.advance(text[at : at + SLICE], last=last and at + SLICE >= len(text))


def safe_cut(text: str) -> int:
    """How much of `text` cannot belong to a span that ends, or is decided, after it, in any of its readings."""
    movement = _OPEN_MOVEMENT.search(text, max(0, len(text) - 20))
    if movement is not None:
        text = text[: movement.start()]
    cut = len(text)
    for plain, places in readings(text):
        place = _decided(plain)
        if places is not None:
            place = places[place] if place < len(places) else len(text)
        cut = min(cut, place)
    return cut


def _decided(text: str) -> int:
    cut = min(_word_start(text, len(text)), _open_groups(text))
    for start in (pem_start(text, 0), key_start(text), email_start(text)):
        if start is not None:
            cut = min(cut, start)
    return cut


def _word_start(text: str, end: int) -> int:
    """Behind the last sign before `end` that no word has."""
    start = max([text.rfind(sign, 0, end) for sign in BREAKS]) + 1
    if text.isascii():
        return start
    return max([found.end() for found in _IDEOGRAPH.finditer(text, start, end)], default=start)


def _open_groups(text: str) -> int:
    """The start of the groups of a number that the following text may continue; `len(text)` where there are none."""
    tag = _OPEN_TAG.search(text, max(0, len(text) - 28))
    end = len(text) if tag is None else tag.start()
    for tail in (_SHORT_TAIL, _TAIL):
        base = max(0, end - tail)
        flat = flattened(text[base:end])
        first, complete = _first_open(flat.text, ended=tag is not None)
        if complete or base == 0 or tail == _TAIL:
            break
    return end if first == len(flat.text) else base + flat.at(first)


def _first_open(text: str, *, ended: bool) -> tuple[int, bool]:
    """The place in a flat text, and whether the groups begin behind its start."""
    groups = grouped(text)
    runs, levels = groups.runs, groups.levels
    at = len(runs)
    behind = text[runs[-1].end :] if runs else text
    if runs and not behind and not ended:
        at -= 1  # the run is not whole and may become anything
        open_ = levels[at] < LEVELS
    else:
        open_ = len(behind) <= MOST_BETWEEN and _CLOSES.search(_SPOKEN.sub("", behind)) is None
    letters = 0
    while at > 0 and open_:
        run = runs[at - 1]
        letters = 0 if run.numeric else letters + 1
        if not (run.joins or len(run.text) == 1) or letters > LETTERS or len(text) - run.start > REACH:
            break
        at -= 1
        open_ = levels[at] < LEVELS
    start = runs[at].start if at < len(runs) else len(text)
    before = _BEFORE.search(text, max(0, start - 3), start)
    return (start if before is None else before.start()), at > 0
