"""A stream of server-sent events, byte-exact: frames, heartbeats, in-band errors, `[DONE]` only after a clean end.

Knows the wire, not the meaning of what it carries. Clients that stop reading are the connection's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.types import Send

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
]
EVENT_STREAM = dict(SSE_HEADERS)[b"content-type"]


def frame(value: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


class EventStream:
    """One response. `write` frames, then `finish` or `end`; as a context manager it stops its timer."""

    def __init__(
        self,
        send: Send,
        headers: list[tuple[bytes, bytes]],
        *,
        heartbeat_s: float = 15.0,
        ping: bytes = PING,
    ) -> None:
        self._send, self._heartbeat = send, ping
        self._headers = headers
        self._heartbeat_s = heartbeat_s
        self._loop = asyncio.get_running_loop()
        self._started = False
        self._writing = False
        self._wrote_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._ping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> EventStream:
        self._arm()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._ping is not None:
            self._ping.cancel()

    async def write(self, data: bytes) -> None:
        if not self._started:
            self._started = True
            start = {"type": "http.response.start", "status": 200, "headers": [*SSE_HEADERS, *self._headers]}
            await self._send(start)
        await self._body(data, more=True)

    async def finish(self, data: bytes) -> None:
        await self.end(data + DONE)

    async def end(self, data: bytes) -> None:
        """Without `[DONE]`: for an error, since a broken answer must not look like a whole one, and for streams of
        other APIs than OpenAI's first one."""
        await self.write(data)
        await self._body(b"", more=False)

    async def _body(self, data: bytes, *, more: bool) -> None:
        self._writing = True
        await self._send({"type": "http.response.body", "body": data, "more_body": more})
        self._writing = False
        self._wrote_at = self._loop.time()

    def _arm(self) -> None:
        self._timer = self._loop.call_later(self._heartbeat_s, self._beat)

    def _beat(self) -> None:
        quiet_s = self._loop.time() - self._wrote_at
        if self._started and not self._writing and quiet_s >= self._heartbeat_s / 2 and not self._pinging():
            self._ping = self._loop.create_task(self._body(self._heartbeat, more=True))
        self._arm()

    def _pinging(self) -> bool:
        return self._ping is not None and not self._ping.done()
