"""A number in groups: what may stand between its parts, and the text in which one separator stands for many. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from gateway.guardrails.folding import lowered

MOST_BETWEEN = 12
"""Characters between two groups of one number."""
RUN = re.compile(r"[0-9A-Za-zÑñ]+")
LETTERS = 6
"""Most capital letters in a row that are a group of a number (the MVZRRL of a CURP)."""
MARKUP = r"</?[A-Za-z][^<>\n]{0,24}>|<!--[^<>\n]{0,24}-->"
_MANY = re.compile(rf"[ \t]{{0,8}}[\r\n][ \t\r\n]{{0,24}}|\t[ \t]{{0,16}}|[ ]{{2,16}}|{MARKUP}")
_LIGHT = re.compile(r"[ \-./_]| [-./_|] ")
_WRAPPED = re.compile(r"[ \-./_]|[-./]?\n| ?[-/_] ?")
_ODD = re.compile(r"(?:[^\w@%€$#?!]|_){1,8}")
_QUOTED = re.compile(r"""[ ,;]{0,2}\b(?:[Ll]etra|[Ll]etter)\b[ :]{0,2}|["'] ?[,+.&]?[ \n]?["']""")
"""A word for the sign that follows; two texts that code joins."""
_SKIPPED = frozenset({"letra", "letter", "Letra", "Letter"})
_NEXT = re.compile(r"[.:;,][ \n]")
"""The end of a sentence, the next of a list."""


@dataclass(frozen=True, slots=True)
class Flat:
    """`text` with every run of spaces, tabs, line breaks and tags as one sign; `places` as in `folding`."""

    text: str
    places: list[int] | None

    def at(self, place: int) -> int:
        return place if self.places is None else self.places[place]


def flattened(text: str) -> Flat:
    """Blanks in a row become one, with a line break among them one line break; a tag of HTML becomes `*`."""
    if _MANY.search(text) is None:
        return Flat(text, None)
    pieces, places, at = list[str](), list[int](), 0
    for found in _MANY.finditer(text):
        start, end = found.span()
        first = text[start]
        sign = "*" if first == "<" else "\n" if "\n" in found[0] or "\r" in found[0] else " "
        pieces += (text[at:start], sign)
        places.extend(range(at, start + 1))
        at = end
    pieces.append(text[at:])
    places.extend(range(at, len(text)))
    return Flat("".join(pieces), places)


LEVELS = 4
"""0: the same separator throughout. 1: a blank, dash, dot, slash. 2: also a line break. 3: also markup and commas."""


@lru_cache(maxsize=4096)
def level_of(separator: str) -> int:
    """The least level at which these signs may stand inside a number; `LEVELS` for none."""
    if _LIGHT.fullmatch(separator):
        return 1
    if _WRAPPED.fullmatch(separator):
        return 2
    if _QUOTED.fullmatch(separator) or (_ODD.fullmatch(separator) and not _NEXT.search(separator)):
        return 3
    return LEVELS


class Run(NamedTuple):
    start: int
    end: int
    text: str
    numeric: bool
    """It has a digit."""
    joins: bool
    """It may be a group of a number."""


@dataclass(frozen=True, slots=True)
class Groups:
    """A flat text with its runs of letters and digits; `levels[n]` is that of the separator before run n."""

    text: str
    lowered: str
    runs: list[Run]
    levels: list[int]


def grouped(text: str) -> Groups:
    runs, levels, last = list[Run](), list[int](), 0
    for found in RUN.finditer(text):
        start, end = found.span()
        run = found[0]
        if run in _SKIPPED:
            continue
        numeric = not run.isalpha()
        runs.append(Run(start, end, run, numeric, numeric or (len(run) <= LETTERS and run.isupper())))
        levels.append(level_of(text[last:start]) if start - last <= MOST_BETWEEN else LEVELS)
        last = end
    if levels:
        levels[0] = LEVELS
    return Groups(text, lowered(text), runs, levels)
