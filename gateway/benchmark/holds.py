"""For how long one piece of work keeps everything else from running, in CPU time, whatever the machine does meanwhile.

Two holds are told apart. Of the event loop: CPU time of its thread between two of its own timers. Of the interpreter:
CPU time of one thread while another one wanted to run Python and could not. Both are CPU time of the thread that holds,
so a machine that is busy with something else does not count; what remains of its noise goes away in the least of
several runs, because a hold is there every time. Linux only.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

TICK_S = 0.001
_PER_THREAD = 6
"""Of a clock id, beside the thread's: `CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED` of Linux."""


@dataclass(frozen=True, slots=True)
class Holds:
    """Milliseconds: the longest of each kind while something ran."""

    loop_ms: float = 0.0
    interpreter_ms: float = 0.0

    @property
    def longest_ms(self) -> float:
        return max(self.loop_ms, self.interpreter_ms)


def least(runs: list[Holds]) -> Holds:
    return Holds(min(run.loop_ms for run in runs), min(run.interpreter_ms for run in runs))


class HoldMeter:
    """Measures between `reset` and `read`. `start` must be called on the loop that is watched, `stop` ends it."""

    def __init__(self) -> None:
        self._loop_s = 0.0
        self._interpreter_s = 0.0
        self._left_out: set[int] = set()
        """The meter itself, and the thread that asks."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hold-meter", daemon=True)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._tick(), name="hold-meter")
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        if self._task is not None:
            self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    def leave_out(self) -> None:
        """The calling thread is not part of what is measured."""
        self._left_out = {threading.get_native_id(), self._thread.native_id or 0}

    def reset(self) -> None:
        self._loop_s = self._interpreter_s = 0.0

    def read(self) -> Holds:
        return Holds(self._loop_s * 1e3, self._interpreter_s * 1e3)

    def during(self, work: Callable[[], object], *, runs: int = 1) -> Holds:
        """The holds while `work` runs in this thread, the least of `runs`."""
        found = []
        self.leave_out()
        for _ in range(runs):
            self.reset()
            work()
            time.sleep(0.02)  # the last tick of the loop sees the end of the work
            found.append(self.read())
        return least(found)

    async def _tick(self) -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.thread_time()
            self._loop_s = max(self._loop_s, now - before)
            before = now

    def _watch(self) -> None:
        used = dict[int, float]()
        while not self._ended.is_set():
            time.sleep(TICK_S)
            now = {tid: _cpu_s(tid) for tid in _python_threads() if tid not in self._left_out}
            longest = max((spent - used[tid] for tid, spent in now.items() if tid in used), default=0.0)
            self._interpreter_s = max(self._interpreter_s, longest)
            used = now


def _python_threads() -> list[int]:
    return [thread.native_id for thread in threading.enumerate() if thread.native_id is not None]


def _cpu_s(tid: int) -> float:
    """CPU seconds of a thread; 0 once it has ended. Asking does not give the interpreter away, as a file would."""
    try:
        return time.clock_gettime((~tid << 3) | _PER_THREAD)
    except OSError:
        return 0.0
