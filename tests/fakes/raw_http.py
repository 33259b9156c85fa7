"""A client that sends any bytes in any pieces and reads answers with a parser of its own; and how it may hang up."""

from __future__ import annotations

import json
import select
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

import httptools


@dataclass
class Reply:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    whole: bool = False

    def json(self) -> Any:
        return json.loads(self.body)


class RawClient:
    """One connection. `replies` holds final answers, `interim` counts those below 200."""

    def __init__(self, url: str, *, timeout_s: float = 20.0, receive_buffer: int | None = None) -> None:
        host, port = url.removeprefix("http://").split(":")
        self.link = socket.socket()
        if receive_buffer is not None:
            self.link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.link.settimeout(timeout_s)
        self.link.connect((host, int(port)))
        self.link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.replies: list[Reply] = []
        self.interim = 0
        self.received = b""
        self.ended = False
        self._parser = httptools.HttpResponseParser(self)
        self._reply = Reply()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()

    def send(self, *parts: bytes) -> RawClient:
        for part in parts:
            self.link.sendall(part)
        return self

    def half_close(self) -> RawClient:
        self.link.shutdown(socket.SHUT_WR)
        return self

    def reset(self) -> None:
        """Hang up so that the peer gets a reset instead of an orderly end."""
        self.link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.link.close()

    def read(self, count: int = 1) -> list[Reply]:
        """Wait for so many whole answers, or the end. Raises `TimeoutError`."""
        while len(self.replies) < count and not self.ended:
            self._receive()
        return self.replies

    def read_all(self) -> list[Reply]:
        """Everything until the peer closes. Raises `TimeoutError` when it does not."""
        while not self.ended:
            self._receive()
        return self.replies

    def wait(self, seconds: float) -> None:
        """Take what comes within that time."""
        if select.select([self.link], [], [], seconds)[0]:
            self._receive()

    def _receive(self) -> None:
        try:
            block = self.link.recv(65536)
        except ConnectionError:
            block = b""
        self.ended = not block
        self.received += block
        try:
            self._parser.feed_data(block)
        except httptools.HttpParserError:
            self.ended = True  # not HTTP/1.x: whatever it is, no further answer can be told apart in it

    # The parser's callbacks.

    def on_message_begin(self) -> None:
        self._reply = Reply()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._reply.headers[name.decode().lower()] = value.decode()

    def on_headers_complete(self) -> None:
        self._reply.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._reply.body += body

    def on_message_complete(self) -> None:
        self._reply.whole = True
        if self._reply.status < 200:
            self.interim += 1
        else:
            self.replies.append(self._reply)
