"""Detects a text that repeats itself. Pure, over token ids."""

from __future__ import annotations

from collections.abc import Sequence

_LONGEST_PERIOD = 32
_REPEATS = 4
_SHORTEST_LOOP = 16
HOPELESS_LOOP = 128
"""A table, a line of dashes or a list of zeros may repeat itself for a while."""


def is_looping(tokens: Sequence[int], shortest: int = _SHORTEST_LOOP) -> bool:
    """True if the tail repeats one block of up to 32 tokens at least 4 times over at least `shortest` tokens."""
    count = len(tokens)
    for period in range(1, _LONGEST_PERIOD + 1):
        length = max(_REPEATS * period, shortest)
        if length > count:
            break
        tail = tokens[count - length :]
        if all(tail[i] == tail[i - period] for i in range(length - 1, period - 1, -1)):
            return True
    return False
