"""Telephone numbers: with a country code, or behind a word that announces one. They only look like what they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.guardrails.detectors.form import GROUPED
from gateway.guardrails.detectors.groups import LEVELS, level_of
from gateway.guardrails.spans import Span

NAME = "contact"
LEAST, MOST = 8, 15
"""Digits (E.164)."""
LEAST_DIALED = 11
"""With `00` and the country before them."""
_CUES = re.compile(
    r"\b(?:tel(?:\.|[eé]fonos?|f\.?|ephone)?|tfno\.?|tlfn?o?\.?|fono|m[oó]vil|celular|cel\.?|whats?app|phone|mobile|"
    r"ll[aá]m[ae](?:me|nos|le|r)?|call (?:me|us)?)(?!\w)[^0-9+]{0,20}(?<![\w.])(?=\(?[0-9])"
)
_INTERNATIONAL = re.compile(r"(?<![0-9+])\+(?=\(?[1-9])")
_DIALED = re.compile(
    r"(?<![\w.+\-/])00(?=(?:34|33|44|49|39|351|5[1-8]|59[1358])[ .\-]\(?[1-9]|34[6-9][0-9]{8}(?![0-9]))"
)
"""With the prefix of a call abroad instead of a plus sign."""
_MOBILE = re.compile(r"(?<![\w.\-/])(?=[67][0-9]{2}-[0-9]{3}-[0-9]{3}(?![\w/]|[.\-]\w))")
"""A mobile of Spain; in blanks it might be an amount."""
_BARE = (_INTERNATIONAL, _MOBILE)
_DIGITS = re.compile(r"[0-9]+")
_OPENING = re.compile(r"\)?[ .\-]?\(|\)[ .\-]?|[ .\-/_]")
"""Between the groups of a number that is written in one line."""


@dataclass(frozen=True, slots=True)
class Phone:
    category: str = "phone"
    detector: str = NAME

    def find(self, text: str, lowered: str, start: int, end: int) -> Iterator[Span]:
        places = [(found.start(), LEAST) for pattern in _BARE for found in pattern.finditer(text, start, end)]
        places += [(found.start(), LEAST_DIALED) for found in _DIALED.finditer(text, start, end)]
        places += [(found.end(), LEAST) for found in _CUES.finditer(lowered, start, end)]
        for place, least in places:
            stop = _end_of_number(text, place, least)
            if stop is not None:
                yield Span(place, stop, self.category, self.detector, certain=False)


def _end_of_number(text: str, place: int, least: int) -> int | None:
    """Behind the groups that one line holds, where these are enough; else also over line breaks and markup."""
    for wide in (False, True):
        ends, digits, last = list[int](), "", -1
        for group in _DIGITS.finditer(text, place, place + GROUPED):
            check_deadline = text[last : group.start()]
            if last >= 0 and not (_OPENING.fullmatch(check_deadline) or (wide and not ends and _joins(check_deadline))):
                break
            if len(digits) + len(group[0]) > MOST:
                break
            digits += group[0]
            last = group.end()
            if len(digits) >= least:
                ends.append(last)
        while ends and _inside_word(text, ends[-1]):
            ends.pop()
        if ends and len(set(digits)) > 2:
            return ends[-1]
    return None


def _inside_word(text: str, end: int) -> bool:
    after = text[end : end + 1]
    return after.isdigit() or after.isupper()


def _joins(separator: str) -> bool:
    quoted = separator.strip()[:1] in ("'", '"')
    return (quoted or "+" not in separator) and level_of(separator) < LEVELS


PHONE = Phone()
