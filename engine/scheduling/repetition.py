"""Detection of a text that does nothing but repeat itself, one step of constant cost a token. Pure.

The newest tokens are looked up by a rolling hash (Karp and Rabin): where they stood before gives a period, and as long
as each further token equals the one a period earlier, the run grows. A run that is long by itself and by its period is
a loop; a table, a row of dashes or the refrain of a song is not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

GRAM = 6
"""Tokens that must agree before a period is looked at."""
LONGEST_PERIOD = 1024
LEAST_RUN = 192
"""A matrix of zeros or a list of equal objects may repeat itself for a while."""
LEAST_PERIODS = 3
"""Further copies of the block behind its first one."""
_BASE, _MODULUS = 1_000_003, (1 << 61) - 1
_LEAVING = pow(_BASE, GRAM, _MODULUS)


class RepetitionGuard:
    """Fed the tokens of one choice in order. Keeps the last `LONGEST_PERIOD` positions."""

    __slots__ = ("_hash", "_keys", "_period", "_places", "_run", "_seen")

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        """Where the tokens with this hash have ended last."""
        self._keys: deque[int] = deque()
        self._hash = self._seen = self._period = self._run = 0

    def loops(self, tokens: Sequence[int], start: int) -> bool:
        """Whether the text from `start` on ends in a loop; reads what has come since the last call."""
        for place in range(self._seen, len(tokens) - start):
            if self._take(tokens, start, place):
                self._seen = place + 1
                return True
        self._seen = max(self._seen, len(tokens) - start)
        return False

    def _take(self, tokens: Sequence[int], start: int, place: int) -> bool:
        token = tokens[start + place]
        self._hash = (self._hash * _BASE + token + 1) % _MODULUS
        if place >= GRAM:
            self._hash = (self._hash - (tokens[start + place - GRAM] + 1) * _LEAVING) % _MODULUS
        if self._run and token == tokens[start + place - self._period]:
            self._run += 1
        else:
            self._run = 0
            if (before := self._places.get(self._hash)) is not None and place >= GRAM:
                self._period, self._run = place - before, GRAM
        self._places[self._hash] = place
        self._keys.append(self._hash)
        if len(self._keys) > LONGEST_PERIOD:
            oldest = self._keys.popleft()
            if self._places.get(oldest) == place - LONGEST_PERIOD:
                del self._places[oldest]
        return self._run >= max(LEAST_RUN, LEAST_PERIODS * self._period)
