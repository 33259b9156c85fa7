"""Numbers of a chain, as ranges: how records of the trail about itself name many of them. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ascending ranges that do not overlap, both ends included. Asked with `in`."""

    firsts: tuple[int, ...] = ()
    lasts: tuple[int, ...] = ()

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self.firsts, number) - 1
        return place >= 0 and number <= self.lasts[place]

    def pairs(self) -> list[list[int]]:
        return [[first, last] for first, last in zip(self.firsts, self.lasts, strict=True)]


def merged(pairs: Iterable[tuple[int, int]]) -> Ranges:
    firsts, lasts = list[int](), list[int]()
    for first, last in sorted(pairs):
        if lasts and first <= lasts[-1] + 1:
            lasts[-1] = max(lasts[-1], last)
        else:
            firsts.append(first)
            lasts.append(last)
    return Ranges(tuple(firsts), tuple(lasts))
