"""Streams of events: the async iterator of one request, and the set of those that are open. Knows no engine.

A stream is told what aborts it. The open ones are held weakly: one that nobody holds aborts its request by itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakValueDictionary

from engine.errors import DeadlineExceeded, EngineError, EngineUnavailable
from engine.requests import EngineUsage, GenerationEvent
from engine.sequence import Consumption
from engine.serving.core import EngineOutput


class GenerationStream:
    """Events in order; ends after the last, raises the engine's error if the request failed.

    The request runs from the moment the stream exists, whether or not anybody reads. `aclose`, a cancelled read and
    garbage collection abort it. Nothing here blocks the engine: what is not read yet waits in this object, at most
    `max_tokens` events a choice. Used from one event loop.
    """

    def __init__(
        self,
        request_id: str,
        on_close: Callable[[GenerationStream], None],
        deadline_s: float | None = None,
        consumption: Consumption | None = None,
    ) -> None:
        self.request_id = request_id
        self.deadline_s = deadline_s
        self._consumption = consumption or Consumption()
        self._on_close = on_close
        self._items: deque[Any] = deque()
        self._reader: asyncio.Future[None] | None = None
        self.finished = False
        """Everything has arrived (read or not), or the stream was closed."""

    def __aiter__(self) -> GenerationStream:
        return self

    async def __anext__(self) -> GenerationEvent:
        item = await self.next_item()
        if isinstance(item, GenerationEvent):
            return item
        raise StopAsyncIteration

    def used(self) -> EngineUsage:
        """The usage of the request so far, read or not: for a consumer that leaves before the last event."""
        return self._consumption.so_far()

    async def next_item(self) -> Any:
        """The next delivery of any kind, or None at the end."""
        while not self._items:
            if self.finished:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            except asyncio.CancelledError:
                self.close()
                raise
            finally:
                self._reader = None
        item = self._items.popleft()
        if isinstance(item, EngineError):
            raise item
        return item

    def put(self, item: Any, last: bool) -> None:
        """Called by the engine's event-loop side."""
        if self.finished:
            return
        self._items.append(item)
        self.finished = last
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def close(self) -> None:
        """Abort if it still runs and drop what was not read. Idempotent."""
        self._items.clear()
        if not self.finished:
            self.finished = True
            self._on_close(self)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def aclose(self) -> None:
        self.close()

    def __del__(self) -> None:
        if not self.finished:
            self.finished = True
            self._on_close(self)


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
