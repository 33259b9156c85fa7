"""All detectors of personal data and secrets over one piece of text. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from gateway.guardrails.detectors.announced import announced
from gateway.guardrails.detectors.email import EMAIL
from gateway.guardrails.detectors.form import Finder
from gateway.guardrails.detectors.groups import flattened, grouped
from gateway.guardrails.detectors.iban import IBAN
from gateway.guardrails.detectors.orders import is_order_number
from gateway.guardrails.detectors.phone import PHONE
from gateway.guardrails.detectors.regrouped import regrouped
from gateway.guardrails.detectors.secrets import SECRETS
from gateway.guardrails.detectors.written import FORMS, written
from gateway.guardrails.folding import lowered, readings
from gateway.guardrails.spans import Span, merged

ANYWHERE: tuple[Finder, ...] = (*SECRETS, EMAIL)
"""They look for their own literals first."""
_IN_FLAT_TEXT: tuple[Finder, ...] = (PHONE, IBAN)
AMONG_DIGITS: tuple[Finder, ...] = _IN_FLAT_TEXT + FORMS
FEWEST = 6
"""Digits that every number has, none far from the next. A CNPJ of letters has them too: four of its branch and two that
check."""
APART = 8
FARTHEST = 40
_BETWEEN = re.compile(
    r"(?></?[A-Za-z][^<>\n]{0,24}>|<!--[^<>\n]{0,24}-->|[^a-z]|(?<![a-zA-Z])[a-z]{1,2}(?![a-zA-Z])|[Ll]etra|[Ll]etter)*+"
)
BEFORE, AFTER = 64, 24
"""How far a number and what decides its form reach beyond its digits: an announcing word stands before it."""
_DIGITS = re.compile(r"[0-9]+")


def scan(text: str) -> list[Span]:
    """Findings in `text`, in order, overlaps merged and named by the most certain, then by secrets before numbers."""
    found: list[Span] = []
    for plain, places in readings(text):
        for span in _found(plain):
            if places is None:
                found.append(span)
            else:
                found.append(replace(span, start=places[span.start], end=places[span.end - 1] + 1))
    return merged(found)


def _found(plain: str) -> Iterator[Span]:
    lower = lowered(plain)
    for finder in ANYWHERE:
        yield from finder.find(plain, lower, 0, len(plain))
    for start, end in areas(plain):
        yield from _among_digits(plain[start:end], start)


def _among_digits(text: str, offset: int) -> Iterator[Span]:
    flat = flattened(text)
    groups = grouped(flat.text)
    lower, size = groups.lowered, len(flat.text)
    spans = [
        *(span for finder in _IN_FLAT_TEXT for span in finder.find(flat.text, lower, 0, size)),
        *written(groups),
        *regrouped(groups),
    ]
    likely = [span for span in spans if span.certain or not is_order_number(span, lower)]
    for span in (*announced(groups), *likely):
        yield replace(span, start=offset + flat.at(span.start), end=offset + flat.at(span.end - 1) + 1)


def areas(text: str) -> Iterator[tuple[int, int]]:
    """The places where enough digits stand together, with their surroundings; most sentences have none."""
    begin, end = 0, -1
    for first, last in _dense(text):
        if first - BEFORE > end:
            if end >= 0:
                yield begin, end
            begin = max(0, first - BEFORE)
        end = min(len(text), last + AFTER)
    if end >= 0:
        yield begin, end


def _dense(text: str) -> Iterator[tuple[int, int]]:
    first, last, count = -1, -1, 0
    for run in _DIGITS.finditer(text):
        start, end = run.span()
        apart = start - last
        if count and apart > APART and (apart > FARTHEST or not _BETWEEN.fullmatch(text, last, start)):
            if count >= FEWEST:
                yield first, last
            count = 0
        if not count:
            first = start
        count += end - start
        last = end
    if count >= FEWEST:
        yield first, last
