"""A TCP proxy in front of a real server whose answers a test can delay, hold back or cut."""

from __future__ import annotations

import asyncio
import contextlib


class SlowProxy:
    """`delay_s` holds every answer back that long; `cut` drops all connections."""

    def __init__(self, host: str, port: int) -> None:
        self.delay_s = 0.0
        self._host, self._port = host, port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        """The port to connect to."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def retarget(self, port: int) -> None:
        """New connections go to another port."""
        self._port = port

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.cut()
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, out = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, out}
        for source, sink, delayed in ((reader, out, False), (there, writer, True)):
            task = asyncio.create_task(self._pipe(source, sink, delayed))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pipe(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, delayed: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                if delayed and self.delay_s:
                    await asyncio.sleep(self.delay_s)
                sink.write(data)
                await sink.drain()
        sink.transport.abort()
