"""Search for marks in a growing text, holding back no more than what may become one."""

from __future__ import annotations

from collections.abc import Sequence


def find(text: str, marks: Sequence[str]) -> tuple[int, str] | None:
    """The first mark in the text and where it begins; of two at one place the longer."""
    found = [(at, -len(mark), mark) for mark in marks if (at := text.find(mark)) >= 0]
    return None if not found else (min(found)[0], min(found)[2])


def held(text: str, marks: Sequence[str]) -> int:
    """How many characters at the end of a text without marks may be the beginning of one."""
    longest = max(map(len, marks), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        tail = text[-size:]
        if any(mark.startswith(tail) for mark in marks):
            return size
    return 0
