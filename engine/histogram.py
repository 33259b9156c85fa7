"""A histogram that costs a bisection per observation. Knows no Prometheus; `metrics` turns its copies into samples."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HistogramData:
    """`counts` has one entry per bucket bound and one above the last; not cumulative."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._total += value * times

    def snapshot(self) -> HistogramData:
        return HistogramData(self._bounds, tuple(self._counts), self._total)
