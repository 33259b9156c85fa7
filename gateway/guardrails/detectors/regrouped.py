"""Numbers that prove themselves however they are grouped: over line breaks, in cells, with markup between their signs.

A number in unusual groups is believed only where it stands for itself: the groups that belong together by their
separators are exactly the number, and nothing goes on before or behind it. A table of numbers is no number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gateway.guardrails.detectors import kinds
from gateway.guardrails.detectors.form import GROUPED
from gateway.guardrails.detectors.groups import LETTERS, LEVELS, Groups, Run
from gateway.guardrails.detectors.kinds import Kind
from gateway.guardrails.spans import Span

_WITH_LETTERS = (kinds.NIF, kinds.NIE, kinds.IBAN, kinds.CURP, kinds.RFC)
_OF_DIGITS = (kinds.CARD, kinds.CLABE)
MOST_RUNS = 34
_DECIMAL = re.compile(r"[0-9]\.[0-9]{12,}")
"""A fraction as programs print it, with all of its digits."""
_LISTED = re.compile(r"[,;:=()]")


def regrouped(groups: Groups) -> Iterator[Span]:
    text, runs = groups.text, groups.runs
    seen: set[tuple[int, int]] = set()
    for most in range(1, LEVELS):
        for first, last in _chains(runs, groups.levels, most):
            if runs[last].end - runs[first].start <= GROUPED + 2 * LETTERS and (first, last) not in seen:
                seen.add((first, last))
                span = _whole(text, runs[first : last + 1])
                if span is not None:
                    yield span


def _chains(runs: Sequence[Run], levels: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """First and last of two or more groups that these separators join."""
    first = 0
    joined = False
    for place, run in enumerate(runs):
        if joined and run.joins and levels[place] <= most:
            continue
        if 1 < place - first <= MOST_RUNS:
            yield first, place - 1
        first, joined = place, run.joins
    if 1 < len(runs) - first <= MOST_RUNS:
        yield first, len(runs) - 1


def _whole(text: str, runs: Sequence[Run]) -> Span | None:
    """The chain as a number, without words in capitals around it."""
    numeric = [place for place, run in enumerate(runs) if run.numeric]
    if not numeric:
        return None
    for first in range(max(0, numeric[0] - 4), numeric[0] + 1):
        for last in range(min(len(runs) - 1, numeric[-1] + 1), numeric[-1] - 1, -1):
            found = _number(text, runs[first : last + 1])
            if found is not None:
                return found
    return None


def _number(text: str, runs: Sequence[Run]) -> Span | None:
    if len(runs) < 2:
        return None
    bare = "".join([run.text for run in runs])
    if not 9 <= len(bare) <= 34:
        return None
    start, end = runs[0].start, runs[-1].end
    if end - start > GROUPED:
        return None
    for kind in _candidates(bare, text[start:end]):
        if kind.holds(bare):
            return Span(start, end, kind.category, kind.detector, kind is not kinds.CLABE)
    return None


def _candidates(bare: str, written: str) -> tuple[Kind, ...]:
    if not bare.isdigit():
        return _WITH_LETTERS if bare.isupper() else ()
    separators = set(re.split("[0-9]+", written)) - {""}
    if _DECIMAL.fullmatch(written) or len(separators) != 1 or _LISTED.search(written):
        return ()
    return _OF_DIGITS
