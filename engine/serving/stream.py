"""The consumer's end of one request: an async iterator of events. Knows no engine; it is told what aborts it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from engine.errors import EngineError
from engine.requests import EngineUsage, GenerationEvent
from engine.sequence import Consumption


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
