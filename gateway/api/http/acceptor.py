"""Takes connections from a listening socket, and leaves them in the kernel's queue while it cannot.

uvloop answers a lack of file descriptors by accepting and closing what waits: clients see a reset. Here nothing is
accepted until descriptors are free again, so clients wait instead. Knows sockets, not HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from gateway.descriptors import is_shortage

_log = logging.getLogger("esclusa.acceptor")
AT_ONCE = 64
"""Accepted in one turn of the event loop, so that a crowd of new connections does not starve the running ones."""
PAUSE_S = 0.05
TELL_EVERY_S = 10.0


class Acceptor:
    """Has what uvicorn calls on an `asyncio.Server`: `close` and `wait_closed`."""

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        *,
        backlog: int,
        is_full: Callable[[], bool],
    ) -> None:
        """`is_full`: no more connections now, not even to refuse them."""
        self._listener, self._protocol, self._backlog, self._is_full = listener, protocol, backlog, is_full
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._told_at = -TELL_EVERY_S
        self._closed = False

    def start(self) -> None:
        self._listener.setblocking(False)
        self._listener.listen(self._backlog)
        self._resume()

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            self._listener.close()

    async def wait_closed(self) -> None:
        if self._opening:
            await asyncio.wait(self._opening)

    def _ready(self) -> None:
        for _ in range(AT_ONCE):
            if self._is_full():
                self._pause("the limit of connections is reached")
                return
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue  # gone while it waited
            except OSError as error:
                if not is_shortage(error):
                    _log.error("cannot accept a connection: %s", error)
                self._pause(f"no connection can be accepted: {error.strerror}")
                return
            self._open(connection)

    def _open(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._attach(connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _attach(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, connection)
        except OSError:
            connection.close()  # gone before it could be served

    def _pause(self, reason: str) -> None:
        now = self._loop.time()
        if now - self._told_at >= TELL_EVERY_S:
            self._told_at = now
            _log.warning("new connections wait: %s", reason)
        self._loop.remove_reader(self._listener)
        self._timer = self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        self._timer = None
        if not self._closed:
            self._loop.add_reader(self._listener, self._ready)
