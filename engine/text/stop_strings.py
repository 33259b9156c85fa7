"""Finds stop strings in a stream of characters. Knows no tokens.

An Aho-Corasick automaton: after each character its depth is the length of the longest suffix of the text that is a
prefix of some stop string, which is exactly what a stream must hold back (Aho and Corasick, CACM 18(6), 1975).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopMatcher:
    """Immutable after construction, so choices of one request share it. State is an int, 0 at the start.

    Size is O(total characters); each character costs O(1) amortized.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._goto: list[dict[str, int]] = [{}]
        self._fail: list[int] = [0]
        self.depth: list[int] = [0]
        self._match: list[str | None] = [None]
        for stop in stops:
            self._insert(stop)
        self._link()

    def _insert(self, stop: str) -> None:
        state = 0
        for char in stop:
            if char not in self._goto[state]:
                self._goto[state][char] = len(self._goto)
                self._goto.append({})
                self._fail.append(0)
                self.depth.append(self.depth[state] + 1)
                self._match.append(None)
            state = self._goto[state][char]
        self._match[state] = stop

    def _link(self) -> None:
        queue = deque(self._goto[0].values())
        while queue:
            state = queue.popleft()
            for char, child in self._goto[state].items():
                self._fail[child] = self._step(self._fail[state], char)
                queue.append(child)
            if self._match[state] is None:
                self._match[state] = self._match[self._fail[state]]

    def _step(self, state: int, char: str) -> int:
        while state and char not in self._goto[state]:
            state = self._fail[state]
        return self._goto[state].get(char, 0)

    def feed(self, state: int, text: str) -> tuple[int, int, str | None]:
        """(state, characters consumed, stop) - stops right behind the earliest end of a match, longest stop first."""
        for index, char in enumerate(text):
            state = self._step(state, char)
            stop = self._match[state]
            if stop is not None:
                return state, index + 1, stop
        return state, len(text), None
