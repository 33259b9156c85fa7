"""Notices a step that does not come back, and a thread that is gone. A thread cannot be killed, so it reports, once a
step, and tells the waiters; new requests are refused while `stalled_s` is above 0."""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from collections.abc import Callable

from engine.serving.loop import EngineThread

log = logging.getLogger(__name__)


class Watchdog:
    """Looks every second (or eight times per limit if that is shorter) from the event loop."""

    def __init__(
        self,
        limit_s: float,
        clock: Callable[[], float],
        tell: Callable[[str], None],
        look: Callable[[float], None],
    ) -> None:
        """`tell(reason)` ends every waiter; `look(now)` is called at every look, stuck or not."""
        self._limit_s, self._clock, self._tell, self._look = limit_s, clock, tell, look
        self._task: asyncio.Task[None] | None = None
        self.stalled_s = 0.0
        """How far the present step is beyond the limit; 0 when all is well."""

    def watch(self, thread: EngineThread) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch(thread))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _watch(self, thread: EngineThread) -> None:
        told_about = -1.0
        while True:
            await asyncio.sleep(min(1.0, self._limit_s / 8))
            self._look(self._clock())
            if thread.has_vanished:
                log.error("the engine thread is gone")
                thread.declare_dead()
                self.stalled_s = 0.0
                self._tell("the engine has failed")
                return
            beat = thread.beat
            over = self._clock() - beat - self._limit_s
            self.stalled_s = max(0.0, over) if thread.stepping else 0.0
            if self.stalled_s and beat != told_about:
                told_about = beat
                frame = sys._current_frames().get(thread.ident or 0)
                stack = "".join(traceback.format_stack(frame)) if frame is not None else "(no frame)"
                log.error("a step of the engine has not returned", extra={"limit_s": self._limit_s, "stack": stack})
                self._tell("the engine has stalled")
