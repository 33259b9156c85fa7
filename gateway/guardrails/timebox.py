"""Inspection beside the event loop and within a time: a thread that gives up by itself, a caller that stops waiting.

Knows no text; tells only whether the work was done.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
Between = Callable[[], None]
"""Called by the work between two slices, so that it can be stopped there; raises `OutOfTime`."""
LONG = 65_536
"""Characters from which a text has threads of its own: whoever sends many long ones keeps only each other waiting."""
_log = logging.getLogger("esclusa.guardrails")


class OutOfTime(Exception):
    """Raised inside the work."""


class NotInspected(Exception):
    """The work took too long or failed; `str()` says which."""


class Timebox:
    """One for all requests. What waits for a free thread spends its own time."""

    def __init__(self, *, timeout_s: float, workers: int) -> None:
        self._timeout_s = timeout_s
        self._short = ThreadPoolExecutor(workers, thread_name_prefix="esclusa-guard")
        self._long = ThreadPoolExecutor(workers, thread_name_prefix="esclusa-guard-long")

    def close(self) -> None:
        for executor in (self._short, self._long):
            executor.shutdown(wait=False, cancel_futures=True)

    async def run(self, work: Callable[[Between], T], *, size: int = 0) -> T:
        """Raises `NotInspected`. The work stops at its next slice once the time is over or nobody waits any more.

        `size`: characters of the text.
        """
        ends = time.monotonic() + self._timeout_s

        def between() -> None:
            if time.monotonic() > ends:
                raise OutOfTime

        executor = self._short if size < LONG else self._long
        future = asyncio.get_running_loop().run_in_executor(executor, work, between)
        future.add_done_callback(_retrieved)
        await asyncio.wait({future}, timeout=self._timeout_s)
        if not future.done():
            raise NotInspected("took too long")
        error = future.exception()
        if error is None:
            return future.result()
        if isinstance(error, OutOfTime):
            raise NotInspected("took too long")
        raise failed(error)

    def at_once(self, work: Callable[[Between], T]) -> T:
        """For texts of a few hundred characters, which cost less than a thread. Raises `NotInspected`."""
        try:
            return work(_no_limit)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise failed(error) from None


def failed(error: BaseException) -> NotInspected:
    _log.error("an inspection failed", exc_info=error)
    return NotInspected(f"failed: {type(error).__name__}")


def _no_limit() -> None:
    return None


def _retrieved(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
