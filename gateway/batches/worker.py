"""Runs the lines of batches on this node: a few at once, behind whoever waits for an answer.

Tasks look for work, renew the leases of what runs, and clear up. Whatever fails here is tried again: the
database may be away for a while, and nothing that is in it gets lost by that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal
from uuid import UUID

from gateway.batches.batch_store import BatchStore
from gateway.batches.file_store import FileStore
from gateway.batches.lifecycle import MAX_ATTEMPTS, verdict_of
from gateway.batches.line_store import LineStore
from gateway.batches.results import answered_line, failed_line
from gateway.batches.values import LeasedLine, LineAnswer, Problem
from gateway.errors import GatewayError, Unavailable
from gateway.flow.context import IdSource
from gateway.flow.values import Principal
from gateway.settings import BatchSettings

_log = logging.getLogger("esclusa.batches")

SWEEP_S = 600.0
FILES_A_SWEEP = 200
NO_CALLER = "The caller of this batch may not call any more."

RunLine = Callable[[LeasedLine, bytes], Awaitable[LineAnswer]]
"""Answers one line of an input file under the caller of its batch. Raises only by cancellation."""


@dataclass(slots=True)
class _Running:
    line: LeasedLine
    task: asyncio.Task[None]


class BatchWorker:
    """`start` before use, `close` at the end: what runs is then stopped and given back to the other nodes."""

    def __init__(
        self,
        batches: BatchStore,
        lines: LineStore,
        files: FileStore,
        run: RunLine,
        settings: BatchSettings,
        ids: IdSource,
        busy: Callable[[], bool] = lambda: False,
        revoked: Callable[[Principal], bool] = lambda _: False,
    ) -> None:
        """`busy`: this node has no room for work that nobody waits for. `revoked` is asked of every open batch, also of
        those that wait: no batch outlives its caller because the revocation was forgotten meanwhile."""
        self._batches, self._lines, self._files, self._run = batches, lines, files, run
        self._settings, self._ids, self._busy, self._revoked = settings, ids, busy, revoked
        self._running: dict[UUID, _Running] = {}
        self._free, self._news = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._done = self._failed = self._repeated = self._open = self._queued = 0
        self._away = False

    # --------------------------------------------------------------------------------------------- lifetime

    def start(self) -> None:
        for work, every_s, sooner in (
            (self._claim, self._settings.poll_s, self._free),
            (self._tend, self._settings.poll_s, self._news),
            (self._renew, self._settings.lease_s / 3, asyncio.Event()),
            (self._sweep, SWEEP_S, asyncio.Event()),
        ):
            task = asyncio.create_task(self._forever(work, every_s, sooner), name=f"batches{work.__name__}")
            self._tasks.append(task)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        running = list(self._running.values())
        for each in running:
            each.task.cancel()
        await asyncio.gather(*(each.task for each in running), return_exceptions=True)

    def wake(self) -> None:
        """A batch is new, or was cancelled: do not wait for the next look."""
        self._news.set()

    def state(self) -> Mapping[str, object]:
        """For metrics; no I/O."""
        return {
            "open": self._open,
            "queued": self._queued,
            "running": len(self._running),
            "done": self._done,
            "failed": self._failed,
            "repeated": self._repeated,
        }

    @property
    def readiness(self) -> Literal["ready", "waiting", "off"]:
        """`waiting`: the last look at the database failed. `off`: this node runs no lines."""
        if self._settings.concurrency == 0:
            return "off"
        return "waiting" if self._away else "ready"

    # ------------------------------------------------------------------------------------------------- loops

    async def _forever(self, work: Callable[[], Awaitable[None]], every_s: float, sooner: asyncio.Event) -> None:
        while True:
            sooner.clear()
            try:
                await work()
                self._away = False
            except Unavailable as error:
                self._away = True
                _log.warning("batches wait: %s", error.detail or error.message)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await (asyncio.Event() if self._away else sooner).wait()

    async def _tend(self) -> None:
        while await self._batches.judge_next():
            self._free.set()
        for opened in await self._batches.opened():
            if self._revoked(opened.principal):
                await self._batches.fail(opened.id, Problem("token_revoked", NO_CALLER))
        for batch_id in await self._batches.to_settle():
            await self._batches.settle(batch_id)
        self._open, self._queued = await self._lines.waiting()

    async def _claim(self) -> None:
        while len(self._running) < self._settings.concurrency and not self._busy():
            lease_id = self._ids.uuid7()
            line = await self._lines.claim(lease_id)
            if line is None:
                return
            self._repeated += line.attempts > 1
            task = asyncio.create_task(self._answer(line, lease_id), name=f"batch line {line.batch.id}/{line.number}")
            self._running[lease_id] = _Running(line, task)
            task.add_done_callback(partial(self._ended, lease_id))

    def _ended(self, lease_id: UUID, task: asyncio.Task[None]) -> None:
        line = self._running.pop(lease_id).line
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, Unavailable):
                _log.warning("line %d of %s waits: %s", line.number, line.batch.id, error.detail or error.message)
            else:
                _log.error("line %d of %s failed here", line.number, line.batch.id, exc_info=error)
        self._free.set()

    async def _renew(self) -> None:
        """Stop what was cancelled, or what another node has taken over."""
        asked = dict(self._running)  # what is claimed while the database answers is not in its answer
        if not asked:
            return
        held = await self._lines.renew(tuple(asked))
        for lease_id, each in asked.items():
            if held.get(lease_id) != "in_progress":
                each.task.cancel()

    async def _sweep(self) -> None:
        while files := await self._files.expired(FILES_A_SWEEP):
            await self._files.remove(files)
            _log.info("removed %d files whose time was over", len(files))
        await self._batches.forget_old()

    # ---------------------------------------------------------------------------------------------- one line

    async def _answer(self, line: LeasedLine, lease_id: UUID) -> None:
        try:
            await self._answer_leased(line, lease_id)
        except (asyncio.CancelledError, Unavailable) as error:
            # Where the database does not answer now, another attempt is made once the lease has run out.
            with contextlib.suppress(Unavailable):
                counts = isinstance(error, Unavailable)
                await asyncio.shield(self._lines.give_back(line, lease_id, counts=counts))
            raise

    async def _answer_leased(self, line: LeasedLine, lease_id: UUID) -> None:
        if line.attempts > MAX_ATTEMPTS:
            code, message = "request_interrupted", "The request was started several times and never came to its end."
            await self._keep(line, lease_id, failed_line(line.batch.id, line.number, line.custom_id, code, message))
            return
        try:
            raw = await self._files.read(line.batch.input_file_id, line.start, line.size)
        except Unavailable:
            raise
        except GatewayError as error:
            result = failed_line(line.batch.id, line.number, line.custom_id, error.code, error.message)
            await self._keep(line, lease_id, result)
            return
        answer = await self._run(line, raw)
        verdict = verdict_of(answer, line.attempts)
        if verdict.pause_s:
            await self._lines.pause(line.batch.id, verdict.pause_s)
        if verdict.line == "again":
            await self._lines.give_back(line, lease_id, counts=verdict.counts)
            return
        result = answered_line(line.batch.id, line.number, line.custom_id, answer)
        await self._keep(line, lease_id, result, done=verdict.line == "done")
        if verdict.refused:
            problem = Problem(answer.code or "invalid_token", NO_CALLER, line.number)
            await self._batches.fail(line.batch.id, problem)

    async def _keep(self, line: LeasedLine, lease_id: UUID, result: bytes, *, done: bool = False) -> None:
        left = await self._lines.finish(line, lease_id, result, done=done)
        if left is None:
            return
        self._done, self._failed = self._done + done, self._failed + (not done)
        if left == 0:
            await self._batches.settle(line.batch.id)
