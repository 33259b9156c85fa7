"""Adds up the time spent inside kernels, so that a step can tell host time from math."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class KernelClock:
    """On a GPU, where kernels run behind the call, this is the time to issue them."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def run(self, op: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        start = perf_counter()
        try:
            return op(*args, **kwargs)
        finally:
            self.seconds += perf_counter() - start
