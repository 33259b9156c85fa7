"""Numbers as their countries write them: the forms, asked by how the first group looks. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from string import ascii_letters

from gateway.guardrails.detectors.cards import CARDS
from gateway.guardrails.detectors.form import GLUED, Form
from gateway.guardrails.detectors.groups import Groups
from gateway.guardrails.detectors.latin_america import LATIN_AMERICA
from gateway.guardrails.detectors.spain import SPAIN
from gateway.guardrails.spans import Span

FORMS: tuple[Form, ...] = (*CARDS, *SPAIN, *LATIN_AMERICA)
_BY_FIRST: dict[str, list[Form]] = defaultdict(list)
for _form in FORMS:
    for _first in _form.first.split():
        _BY_FIRST[_first].append(_form)


def written(groups: Groups) -> Iterator[Span]:
    text = groups.text
    for run in groups.runs:
        if run.joins:
            word, place = run.text, run.start
            if not run.text[0].isdigit():
                glued = GLUED.match(word)
                if glued is not None:
                    yield from _at(text, word[glued.end() :], place + glued.end())
            yield from _at(text, word, place)


def _at(text: str, word: str, place: int) -> Iterator[Span]:
    if word[0].isdigit():
        first = f"d{len(word) - len(word.lstrip('0123456789'))}"
    else:
        first = f"a{len(word) - len(word.lstrip(ascii_letters))}"
    for one in _BY_FIRST.get(first, ()):
        match = one.pattern.match(text, place)
        if match is not None and one.check(match[0]):
            yield Span(place, match.end(), one.category, one.detector, one.certain)
