"""Notice that a client hung up while its answer is being made. Knows ASGI's `receive`, nothing of models.

Watching starts late, because most answers of a fast backend are gone before it would pay.
"""

from __future__ import annotations

import asyncio

from starlette.types import Receive

WATCH_AFTER_S = 0.1


class DisconnectWatcher:
    """Cancels the request's own task on `http.disconnect`. Start it once the body has been read."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False
        self._target: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watcher: asyncio.Task[None] | None = None

    def gone(self) -> bool:
        return self._gone

    def start(self) -> None:
        self._target = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._watch)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()

    def leave(self) -> None:
        """The client is known to be gone."""
        self._gone = True

    def _watch(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._wait())

    async def _wait(self) -> None:
        message = await self._receive()
        while message["type"] != "http.disconnect":
            message = await self._receive()
        self._gone = True
        if self._target is not None:
            self._target.cancel()
