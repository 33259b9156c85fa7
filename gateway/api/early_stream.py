"""The way to the client, knowing how far an answer has got: who waits is told so, and one that is cut off too.

A stream's first token may take long, behind others in a queue or a long prompt. Proxies and clients give up on a
connection in silence, so that the stream begins without it: headers, then heartbeats until the answer takes over.
"""

from __future__ import annotations

import asyncio
import contextlib

from starlette.types import Message, Send

from gateway.api.http.dialects import Dialect
from gateway.api.http.header_values import Headers
from gateway.api.http.refusing import BrokenOff, refuse
from gateway.api.sse import EVENT_STREAM, SSE_HEADERS
from gateway.errors import GatewayError, Unavailable

HEARTBEAT_S = 15.0
"""Of waiting for the first token, and between two heartbeats."""
CUT_SHORT_S = 1.0
"""How long a client that does not read may hold up the end."""


class EarlyStream:
    """An ASGI `send`. `expect` once the answer is under way; `close` at the end."""

    def __init__(self, send: Send, dialect: Dialect, broken_off: BrokenOff, ping: bytes) -> None:
        self._send, self._dialect, self._broken_off, self._ping = send, dialect, broken_off, ping
        self._begun = self._streams = self._ended = False
        self._headers: Headers = []
        self._waiting: asyncio.TimerHandle | None = None
        self._beating: asyncio.Task[None] | None = None
        self.opened = False
        """The stream was begun before its first token: whatever happens now is told within it."""

    async def __call__(self, message: Message) -> None:
        await self._stop_waiting()
        if message["type"] == "http.response.start":
            self._begun, self._streams = True, (b"content-type", EVENT_STREAM) in message["headers"]
            if self.opened:
                return
        else:
            self._ended = not message.get("more_body", False)
        await self._send(message)

    def expect(self, headers: Headers) -> None:
        """The first token of a stream will come. Called again where another model takes over."""
        self._headers = headers
        if self._waiting is None and not self.opened:
            self._waiting = asyncio.get_running_loop().call_later(HEARTBEAT_S, self._beat)

    async def refuse(self, error: GatewayError, request_id: str) -> None:
        """As an answer of its own, or within the stream that has begun without one."""
        await self._stop_waiting()
        if not self.opened:
            await refuse(self._send, error, request_id, self._dialect)
        elif not self._ended:
            await self._fail(error, request_id)

    async def cut_short(self, request_id: str) -> None:
        """The process stops under a running request: 503, or an error in-band where a stream has begun."""
        error = Unavailable(
            "The gateway is stopping and has ended this request.",
            code="gateway_stopping",
            hint="send the request again; it was recorded as cancelled",
        )
        with contextlib.suppress(TimeoutError, asyncio.CancelledError, OSError):
            async with asyncio.timeout(CUT_SHORT_S):
                if self.opened or (self._begun and self._streams and not self._ended):
                    await self._fail(error, request_id)
                elif not self._begun:
                    await refuse(self._send, error, request_id, self._dialect)

    def close(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        if self._beating is not None:
            self._beating.cancel()

    async def _fail(self, error: GatewayError, request_id: str) -> None:
        self._ended = True
        body = self._broken_off(error, request_id)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _stop_waiting(self) -> None:
        """A heartbeat on its way leaves whole before anything else does."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if self._beating is not None and not self._beating.done():
            await self._beating

    def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        self._beating = loop.create_task(self._open_and_ping())
        self._waiting = loop.call_later(HEARTBEAT_S, self._beat)

    async def _open_and_ping(self) -> None:
        if not self.opened:
            self.opened = True
            await self._send({"type": "http.response.start", "status": 200, "headers": [*SSE_HEADERS, *self._headers]})
        await self._send({"type": "http.response.body", "body": self._ping, "more_body": True})
