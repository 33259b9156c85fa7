"""One kind of thing that can be found in a text: a form, and a check that the form alone cannot make.

Every form is bounded and starts at a literal or at the edge of a word, so that a search is linear in the text. A span
is one word without `BREAKS`, or groups of at most `GROUPED` characters in all, or a private-key block: the window over
streams relies on it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from gateway.guardrails.spans import Span

GROUPED = 96
"""Longest span with separators inside, in flat text: 34 signs of an IBAN, each apart from the next, have 67."""
BREAKS = " \n\t\r\"',;<>`"
IDEOGRAPHS = "\u3000-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""No span has these inside (blanks only between its groups): a word ends there, also where a script knows no blanks."""
LONGEST = 8192
"""Longest span of any kind: a private-key block of 8,192 bits has 6,500 characters."""


class Finder(Protocol):
    @property
    def category(self) -> str: ...

    @property
    def detector(self) -> str: ...

    def find(self, text: str, lowered: str, start: int, end: int) -> Iterator[Span]:
        """Spans whose match begins in `text[start:end]`; they may overlap.

        `lowered` is `text` in lower case, sign by sign, made once for all finders.
        """
        ...


def anything(_: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Form:
    """A regular expression with a check.

    `starts`: lower-case literals with one of which every match begins. They are looked for first, which costs next to
    nothing where there are none. A form without them is searched for, sign by sign.
    """

    category: str
    detector: str
    pattern: re.Pattern[str]
    check: Callable[[str], bool] = anything
    starts: tuple[str, ...] = ()
    group: int = 0
    """The part of the match that is the span; the rest is a cue that stands before it."""
    certain: bool = True
    first: str = ""
    """How the first run of letters and digits may begin: `d8` with eight digits, `a1` with one letter (`written`)."""

    def find(self, text: str, lowered: str, start: int, end: int) -> Iterator[Span]:
        for match in self._started(text, lowered, start, end) if self.starts else self._searched(text, start, end):
            if self.check(match[self.group]):
                begin, stop = match.span(self.group)
                yield Span(begin, stop, self.category, self.detector, self.certain)

    def _started(self, text: str, lowered: str, start: int, end: int) -> Iterator[re.Match[str]]:
        for literal in self.starts:
            at = lowered.find(literal, start, end)
            while at >= 0:
                match = self.pattern.match(text, at)
                if match is not None:
                    yield match
                at = lowered.find(literal, at + 1, end)

    def _searched(self, text: str, start: int, end: int) -> Iterator[re.Match[str]]:
        match = self.pattern.search(text, start, end)
        while match is not None:
            yield match
            match = self.pattern.search(text, match.start() + 1, end)


GLUED = re.compile(
    r"(?i:dni|nif|nie|cif|rut|run|nit|ruc|rfc|cpf|doc|vat|tel|curp|cuit|cuil|cnpj|iban|card|clabe|tarjeta|visa|pan|ci|cc|id|es)"
    r"(?=[A-Za-z]{0,4}[0-9])"
)
"""A word that is written against its number, or the country of a VAT number."""
BEGIN = r"(?<![0-9]\.)(?:(?<!(?<![\w.,])0,)|(?=[0-9]+,\S))"
"""Not the decimals of another number: behind a full stop, or behind a zero and a comma that begin a field. Behind any
other comma stands the next field of a row, as no program writes that many decimals behind a comma."""
END = r"(?![0-9A-ZÑ])(?!(?<=[0-9])\.[0-9])(?!(?<![0-9])[a-z])"
"""Where it may end: lower-case letters may touch its last digit (`…332abc`), nothing touches its last letter. A comma
is never part of a version or an amount here: no amount has the dashes, letters or check digits of these numbers."""
ALONE = r"(?<![\w.\-/])", r"(?![\w/]|[.\-]\w)"
"""Edges of what is weak by itself."""


def form(
    category: str,
    detector: str,
    first: str,
    pattern: str,
    check: Callable[[str], bool],
    *,
    certain: bool = True,
    end: str = END,
) -> Form:
    """A number whose separators prove it as much as its digits do."""
    return Form(category, detector, re.compile(f"{BEGIN}{pattern}{end}"), check, certain=certain, first=first)


def weak(category: str, detector: str, first: str, pattern: str, check: Callable[[str], bool]) -> Form:
    """A number that only looks like one: nothing may touch it."""
    compiled = re.compile(f"{ALONE[0]}{pattern}{ALONE[1]}")
    return Form(category, detector, compiled, check, certain=False, first=first)
