"""All detectors of personal data and secrets over one piece of text. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from gateway.guardrails.contact import CONTACT
from gateway.guardrails.detector import Finder
from gateway.guardrails.folding import folded, lowered
from gateway.guardrails.payment import PAYMENT
from gateway.guardrails.persons import ANNOUNCED, LATIN_AMERICA, SPAIN
from gateway.guardrails.secrets import SECRETS
from gateway.guardrails.spans import Span, merged

ANYWHERE: tuple[Finder, ...] = (*SECRETS, *ANNOUNCED, *CONTACT)
"""They look for their own literals first."""
AMONG_DIGITS: tuple[Finder, ...] = (*PAYMENT, *SPAIN, *LATIN_AMERICA)
FEWEST = 6
"""Digits that every number of `AMONG_DIGITS` has, none far from the next. A CNPJ of letters has them
too: four of its branch and two that check."""
APART = 8
_BETWEEN = re.compile(r"[A-Z .\-/&Ñ]*")
BEFORE, AFTER = 24, 24
"""How far a number and what decides its form reach beyond its digits."""
_DIGITS = re.compile(r"[0-9]+")


def scan(text: str) -> list[Span]:
    """What is in `text`, in order, overlaps merged and named by the most certain, then by secrets before numbers."""
    plain, places = folded(text)
    lower = lowered(plain)
    found = [span for finder in ANYWHERE for span in finder.find(plain, lower, 0, len(plain))]
    for start, end in _areas(plain):
        found += [span for finder in AMONG_DIGITS for span in finder.find(plain, lower, start, end)]
    spans = merged(found)
    if places is None:
        return spans
    return [replace(span, start=places[span.start], end=places[span.end - 1] + 1) for span in spans]


def _areas(text: str) -> Iterator[tuple[int, int]]:
    """Where enough digits stand together; most sentences have no such place."""
    first, last, count = -1, -1, 0
    for run in _DIGITS.finditer(text):
        start, end = run.span()
        if count and (start - last > APART or _BETWEEN.fullmatch(text, last, start) is None):
            if count >= FEWEST:
                yield max(0, first - BEFORE), last + AFTER
            count = 0
        if not count:
            first = start
        count += end - start
        last = end
    if count >= FEWEST:
        yield max(0, first - BEFORE), last + AFTER
