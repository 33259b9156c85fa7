"""Requests whose grammar is being compiled: outside the step loop, with a time limit, and told whatever happens.

The limit is CPU time of the compiling thread, so that a busy machine refuses nobody; a wall time far above it bounds
the wait.

Every submission given to `add` either reaches `submit` or gets its last delivery through `tell`: refused, timed out,
ended by its caller, or cut off by `close`. Knows no streams and no scheduler.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from engine.errors import EngineError, EngineFault, EngineUnavailable, InvalidGrammar
from engine.requests import EngineSignals, EngineUsage, FinishReason, GenerationEvent, Grammar
from engine.serving.core import EngineOutput, Submission
from engine.text.grammar import GrammarCompiler, GrammarMatcher

log = logging.getLogger(__name__)
_MOST_WALL = 12
"""Times the limit, in wall time."""
Deliver = Callable[[list[EngineOutput]], None]


class CompilingRequests:
    """Used from one event loop; only `holds` may be called from any thread."""

    def __init__(self, timeout_s: float, submit: Callable[[Submission], None], tell: Deliver) -> None:
        self._timeout_s, self._submit, self._tell = timeout_s, submit, tell
        self._executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix="esclusa-grammar")
        self._running: dict[str, tuple[Submission, asyncio.Task[None]]] = {}

    def holds(self, request_id: str) -> bool:
        return request_id in self._running

    def add(self, submission: Submission, grammar: Grammar, compiler: GrammarCompiler) -> None:
        task = asyncio.get_running_loop().create_task(self._compile(submission, grammar, compiler))
        self._running[submission.request.request_id] = (submission, task)
        task.add_done_callback(partial(self._done, submission))

    def end(self, request_id: str, finish: FinishReason, reason: str) -> bool:
        """End a request that has not reached the loop yet; False if there is none, or it has just gone there."""
        submission, task = self._running.get(request_id, (None, None))
        if submission is None or task is None or not task.cancel():
            return False
        del self._running[request_id]
        self._tell(_ended(submission, finish, reason))
        return True

    def close(self) -> None:
        """Nobody may wait for a compilation that nobody will read."""
        for submission, task in list(self._running.values()):
            if task.cancel():
                self._tell([_refused(submission, EngineUnavailable("the engine is stopped"))])
        self._running.clear()
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _compile(self, submission: Submission, grammar: Grammar, compiler: GrammarCompiler) -> None:
        try:
            matcher = await self._within_time(partial(compiler.compile, grammar))
            if self._running.get(submission.request.request_id, (None, None))[0] is submission:
                self._submit(replace(submission, grammar=matcher))
        except TimeoutError:
            limit = f"did not compile within {self._timeout_s:g} s"
            self._tell([_refused(submission, InvalidGrammar(f"grammar.{grammar.type}", "grammar", limit))])
        except EngineError as error:
            self._tell([_refused(submission, error)])

    async def _within_time(self, work: Callable[[], GrammarMatcher]) -> GrammarMatcher:
        """Raises `TimeoutError` once the work has taken its CPU time; waiting for a thread to do it costs none."""
        clock, started = WorkClock(), time.monotonic()
        future = asyncio.get_running_loop().run_in_executor(self._executor, clock.measured, work)
        while True:
            done, _ = await asyncio.wait({future}, timeout=self._timeout_s / 20)
            if done:
                return future.result()
            if clock.spent_s() > self._timeout_s or time.monotonic() - started > _MOST_WALL * self._timeout_s:
                future.cancel()
                raise TimeoutError

    def _done(self, submission: Submission, task: asyncio.Task[None]) -> None:
        request_id = submission.request.request_id
        if self._running.get(request_id, (None, None))[1] is task:
            del self._running[request_id]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("compiling a grammar failed", exc_info=error, extra={"request_id": request_id})
            self._tell([_refused(submission, EngineFault("a fault while the grammar was compiled"))])


class WorkClock:
    """CPU time of one piece of work in another thread, where the system tells it; else its wall time."""

    def __init__(self) -> None:
        self._clock: int | None = None
        self._began_s: float | None = None

    def measured(self, work: Callable[[], GrammarMatcher]) -> GrammarMatcher:
        """Called in that thread."""
        if hasattr(time, "pthread_getcpuclockid"):
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._began_s = self._now()
        try:
            return work()
        finally:
            self._began_s = None

    def spent_s(self) -> float:
        """0 before the work begins and after it has ended. The thread lives as long as the executor."""
        began_s = self._began_s
        return 0.0 if began_s is None else self._now() - began_s

    def _now(self) -> float:
        return time.monotonic() if self._clock is None else time.clock_gettime(self._clock)


def _refused(submission: Submission, error: EngineError) -> EngineOutput:
    return EngineOutput(submission.request.request_id, submission.ticket, error, True)


def _ended(submission: Submission, finish: FinishReason, reason: str) -> list[EngineOutput]:
    """The last events of all choices of a request that never ran."""
    request = submission.request
    request_id, count = request.request_id, request.sampling.n
    usage = EngineUsage(len(request.prompt_token_ids), 0)
    outputs = []
    for index in range(count):
        last = index == count - 1
        event = GenerationEvent(
            request_id,
            index,
            finish_reason=finish,
            stop_reason=reason,
            usage=usage if last else None,
            signals=EngineSignals(seed=(submission.seed + index) & (2**64 - 1)),
        )
        outputs.append(EngineOutput(request_id, submission.ticket, event, last))
    return outputs
