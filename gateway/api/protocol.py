"""uvicorn's httptools protocol with the limits it lacks: bytes and time of a header block, connections, our errors.

A connection that sends nothing, or its headers drop by drop, is closed after `header_timeout_s` (T28).
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.api.refusals import Refusals, Unrecorded
from gateway.flow.context import IdSource

DEFAULT_HEADER_TIMEOUT_S = 10.0
DEFAULT_MAX_HEADER_BYTES = 64 * 1024
REFUSAL_TIMEOUT_S = 2.0
"""How long a connection too many may take to ask."""
REFUSALS = {
    400: ("malformed_request", "The request is not valid HTTP/1.1."),
    408: ("request_timeout", "The headers did not arrive in time."),
    431: ("headers_too_large", "The headers are too large."),
    503: ("overloaded", "Too many connections."),
}


class GuardedProtocol(HttpToolsProtocol):
    """Made by `guarded` with its limits; one per connection."""

    header_timeout_s = DEFAULT_HEADER_TIMEOUT_S
    max_header_bytes = DEFAULT_MAX_HEADER_BYTES
    max_connections = 4096
    ids: IdSource
    refusals: Refusals | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._header_bytes = 0
        self._in_headers = True
        self._timer: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        # One too many is refused once it has asked: closed with bytes unread, it would be reset before it reads why.
        self._is_one_too_many = len(self.connections) > self.max_connections
        self._arm()

    def data_received(self, data: bytes) -> None:
        if self._in_headers:
            self._header_bytes += len(data)
        super().data_received(data)
        # What came with the end of the headers is body; only an unfinished block counts against the limit.
        if self._in_headers and self._header_bytes and not self.transport.is_closing():
            if self._header_bytes > self.max_header_bytes:
                self._refuse(431)
            elif self._timer is None:
                self._arm()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._header_bytes = 0
        self._disarm()
        if self._is_one_too_many:
            self._refuse(503)
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_one_too_many:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._is_one_too_many:
            return
        super().on_message_complete()
        self._in_headers = True
        self._header_bytes = 0

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - the parser's words are not for strangers
        self._refuse(400)

    def _arm(self) -> None:
        patience_s = min(self.header_timeout_s, REFUSAL_TIMEOUT_S) if self._is_one_too_many else self.header_timeout_s
        self._timer = self.loop.call_later(patience_s, self._too_slow)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self._in_headers and not self.transport.is_closing():
            self._refuse(503 if self._is_one_too_many else 408)

    def _refuse(self, status: int) -> None:
        code, message = REFUSALS[status]
        kind = "server_error" if status >= 500 else "invalid_request_error"
        number = self.ids.uuid7()
        request_id = str(number)
        if self.refusals is not None:
            peer = self.client[0] if self.client else None
            self.refusals.count(Unrecorded(number, status, code, source=peer))
        error: dict[str, Any] = {"message": message, "type": kind, "code": code, "param": None}
        error["request_id"] = request_id
        body = orjson.dumps({"error": error})
        retry = b"retry-after: 1\r\n" if status == 503 else b""
        self.transport.write(
            STATUS_LINE[status]
            + b"content-type: application/json\r\nconnection: close\r\n"
            + b"x-request-id: %s\r\n" % request_id.encode()
            + retry
            + b"content-length: %d\r\n\r\n" % len(body)
            + body
        )
        self.transport.close()


def guarded(
    *,
    header_timeout_s: float,
    max_header_bytes: int,
    max_connections: int,
    ids: IdSource,
    refusals: Refusals | None = None,
) -> type[GuardedProtocol]:
    """A protocol class with these limits: uvicorn takes a class, not an instance."""
    limits = {
        "header_timeout_s": header_timeout_s,
        "max_header_bytes": max_header_bytes,
        "max_connections": max_connections,
        "ids": ids,
        "refusals": refusals,
    }
    return type("LimitedProtocol", (GuardedProtocol,), limits)
