"""Commands from other threads to the engine thread. Plain values; the loop handles them between steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from engine.errors import EngineError, EngineFault, EngineUnavailable
from engine.requests import FinishReason
from engine.serving.core import EngineOutput, Submission

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Submit:
    submission: Submission


@dataclass(frozen=True, slots=True)
class End:
    request_id: str
    reason: FinishReason
    stop_reason: str | int | None


@dataclass(frozen=True, slots=True)
class Control:
    """`action` runs in the engine thread, with `when_idle` once no request is left; `done` gets its outcome."""

    action: Callable[[], None]
    done: Future[None]
    when_idle: bool = False
    computes: bool = False
    """Work of requests, so that the watchdog looks at it as at a step."""

    def act(self) -> None:
        if not self.done.set_running_or_notify_cancel():
            return
        try:
            self.action()
        except EngineError as error:
            self.done.set_exception(error)
        except BaseException as error:  # whoever waits is told, also of a panic of a Rust extension
            log.exception("an engine command failed")
            self.done.set_exception(error if isinstance(error, Exception) else _panic(error))
        else:
            self.done.set_result(None)

    def refuse(self, error: Exception) -> None:
        if self.done.set_running_or_notify_cancel():
            self.done.set_exception(error)


def _panic(error: BaseException) -> EngineFault:
    """An exception as it may be raised anywhere: asyncio and the interpreter act on some that are no `Exception`."""
    fault = EngineFault("a fault inside the engine", hint="the log has the reason")
    fault.__cause__ = error
    return fault


Command = Submit | End | Control


class CommandQueue:
    """Filled from any thread, emptied by the engine's. Every command taken out is obeyed or refused by the taker."""

    def __init__(self) -> None:
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._for_idle: list[Control] = []

    def put(self, command: Command) -> None:
        self._commands.put(command)

    def take(self, wait_s: float) -> Iterator[Command]:
        """All that is there; waits at most `wait_s` for the first."""
        with suppress(Empty):
            yield self._commands.get(timeout=wait_s) if wait_s else self._commands.get_nowait()
            while True:
                yield self._commands.get_nowait()

    def keep_for_idle(self, control: Control) -> None:
        self._for_idle.append(control)

    def take_idle(self) -> list[Control]:
        """Those that were waiting for the last request to end."""
        controls, self._for_idle = self._for_idle, []
        return controls

    def refuse_all(self, error: EngineUnavailable) -> list[EngineOutput]:
        """Nobody may wait for a thread that will not act. Returns what the submitters are to be told."""
        refusals = []
        for command in (*self.take_idle(), *self.take(0.0)):
            if isinstance(command, Submit):
                submission = command.submission
                refusals.append(EngineOutput(submission.request.request_id, submission.ticket, error, True))
            elif isinstance(command, Control):
                command.refuse(error)
        return refusals
