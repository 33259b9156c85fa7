"""One kind of thing that can be found in a text: a form, and a check that the form alone cannot make.

Every form is bounded and starts at a literal or at the edge of a word, so that a search is linear in the text. A span
is one word without spaces, or groups of at most `GROUPED` characters in all, or a private-key block: the window over
streams relies on it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from gateway.guardrails.spans import Span

GROUPED = 48
"""Longest span with spaces inside: an IBAN of 34 signs in groups of four has 42."""
LONGEST = 8192
"""Longest span of any kind: a private-key block of 8,192 bits has 6,500 characters."""


class Finder(Protocol):
    @property
    def category(self) -> str: ...

    @property
    def detector(self) -> str: ...

    def find(self, text: str, lowered: str) -> Iterator[Span]:
        """Spans in order, none overlapping another. `lowered` is `text.lower()`, made once for all finders."""
        ...


def anything(_: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Form:
    """A regular expression with a check. `hints`: lower-case literals, one of which must be in the text."""

    category: str
    detector: str
    pattern: re.Pattern[str]
    check: Callable[[str], bool] = anything
    hints: tuple[str, ...] = ()
    group: int = 0
    """The part of the match that is the span; the rest is a cue that stands before it."""
    certain: bool = True

    def find(self, text: str, lowered: str) -> Iterator[Span]:
        if self.hints and not any(hint in lowered for hint in self.hints):
            return
        at = 0
        while (match := self.pattern.search(text, at)) is not None:
            if self.check(match[self.group]):
                start, end = match.span(self.group)
                yield Span(start, end, self.category, self.detector, self.certain)
                at = max(end, match.start() + 1)
            else:
                at = match.start() + 1
