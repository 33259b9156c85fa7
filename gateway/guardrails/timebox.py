"""Inspection beside the event loop and within a time: a thread that gives up by itself, a caller that stops waiting.

The time is the processor time of the thread that works, so that a busy machine refuses nobody whose text is short;
a much longer wait bounds what a caller stands for. Knows no text; tells only whether the work was done.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
Between = Callable[[], None]
"""Called by the work between two slices, so that it can be stopped there; raises `OutOfTime`."""
PATIENCE = 10
"""The wait for the work, in queue and under way, as a multiple of its processor time."""
LONG = 65_536
"""Characters from which a text has threads of its own: whoever sends many long ones keeps only each other waiting."""
_log = logging.getLogger("esclusa.guardrails")


class OutOfTime(Exception):
    """Raised inside the work."""


class NotInspected(Exception):
    """The work took too long or failed; `str()` says which."""


class Timebox:
    """One for all requests. `timeout_s` is processor time; the wait for it, in queue and under way, is `wait_s`."""

    def __init__(self, *, timeout_s: float, workers: int, wait_s: float | None = None) -> None:
        self._timeout_s = timeout_s
        self._wait_s = timeout_s * PATIENCE if wait_s is None else wait_s
        self._short = ThreadPoolExecutor(workers, thread_name_prefix="esclusa-guard")
        self._long = ThreadPoolExecutor(workers, thread_name_prefix="esclusa-guard-long")

    def close(self) -> None:
        for executor in (self._short, self._long):
            executor.shutdown(wait=False, cancel_futures=True)

    async def run(self, work: Callable[[Between], T], *, size: int = 0) -> T:
        """Raises `NotInspected`. The work stops at its next slice once its time is over or nobody waits any more.

        `size`: characters of the text.
        """
        abandoned = threading.Event()
        executor = self._short if size < LONG else self._long
        future = asyncio.get_running_loop().run_in_executor(executor, self._within_time, work, abandoned)
        future.add_done_callback(_retrieved)
        try:
            await asyncio.wait({future}, timeout=self._wait_s)
        finally:
            abandoned.set()
        if not future.done():
            raise NotInspected("took too long")
        error = future.exception()
        if error is None:
            return future.result()
        if isinstance(error, OutOfTime):
            raise NotInspected("took too long")
        raise failed(error)

    def _within_time(self, work: Callable[[Between], T], abandoned: threading.Event) -> T:
        """In the thread."""
        started = time.thread_time()

        def check_deadline() -> None:
            if abandoned.is_set() or time.thread_time() - started > self._timeout_s:
                raise OutOfTime

        check_deadline()
        return work(check_deadline)

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
