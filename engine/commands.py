"""What other threads may ask of the engine thread. Plain values; the loop obeys them between steps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from engine.core import Submission
from engine.errors import EngineError
from engine.requests import FinishReason

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

    def act(self) -> None:
        if not self.done.set_running_or_notify_cancel():
            return
        try:
            self.action()
        except EngineError as error:
            self.done.set_exception(error)
        except Exception as error:
            log.exception("an engine command failed")
            self.done.set_exception(error)
        else:
            self.done.set_result(None)

    def refuse(self, error: Exception) -> None:
        if self.done.set_running_or_notify_cancel():
            self.done.set_exception(error)


Command = Submit | End | Control
