"""The streams whose requests are under way: who is told what, and who is told without the engine thread.

Used from one event loop. Holds streams weakly: one that nobody holds aborts its request by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from weakref import WeakValueDictionary

from engine.errors import DeadlineExceeded, EngineError, EngineUnavailable
from engine.sequence import Consumption
from engine.serving.core import EngineOutput
from engine.serving.stream import GenerationStream

ELSEWHERE = "retry on another replica, or ask for another model"
OVERDUE_S = 5.0
"""The engine thread keeps deadlines itself, between two steps. That long after one, its waiter is told without it."""


class OpenStreams:
    """`abort(request_id, reason)` asks the engine thread to forget a request."""

    def __init__(self, abort: Callable[[str, str], None]) -> None:
        self._abort = abort
        self._by_id: WeakValueDictionary[str, GenerationStream] = WeakValueDictionary()
        self._by_ticket: WeakValueDictionary[int, GenerationStream] = WeakValueDictionary()

    def open(
        self, request_id: str, ticket: int, deadline_s: float | None, consumption: Consumption
    ) -> GenerationStream:
        stream = GenerationStream(
            request_id, lambda closed: self._abort(closed.request_id, "closed"), deadline_s, consumption
        )
        self._by_id[request_id] = stream
        self._by_ticket[ticket] = stream
        return stream

    def is_running(self, request_id: str) -> bool:
        known = self._by_id.get(request_id)
        return known is not None and not known.finished

    def is_waited_for(self, ticket: int) -> bool:
        known = self._by_ticket.get(ticket)
        return known is not None and not known.finished

    def dispatch(self, outputs: Iterable[EngineOutput]) -> None:
        for output in outputs:
            stream = self._by_ticket.get(output.ticket)
            if stream is not None:
                stream.put(output.item, output.last)

    def end_all(self, reason: str) -> None:
        """The thread cannot tell its waiters."""
        for stream in self._living():
            self._end(stream, "stalled", EngineUnavailable(reason, hint=ELSEWHERE))

    def end_overdue(self, now: float) -> None:
        """A deadline holds whether or not the thread comes round to it."""
        for stream in self._living():
            if stream.deadline_s is not None and now > stream.deadline_s + OVERDUE_S:
                self._end(stream, "deadline", DeadlineExceeded())

    def _living(self) -> list[GenerationStream]:
        return [stream for stream in list(self._by_ticket.values()) if not stream.finished]

    def _end(self, stream: GenerationStream, reason: str, error: EngineError) -> None:
        self._abort(stream.request_id, reason)
        stream.put(error, True)
