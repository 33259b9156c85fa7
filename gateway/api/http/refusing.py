"""Answers that are whole at once: a body with its headers, and a refusal in the dialect of its request."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Send

from gateway.api.http.dialects import Dialect
from gateway.api.http.header_values import Headers, header_value
from gateway.errors import GatewayError

BrokenOff = Callable[[GatewayError, str], bytes]
"""The last event of a stream that does not reach its end."""


async def respond(send: Send, body: bytes, headers: Headers, status: int = 200) -> None:
    base = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": base + headers})
    await send({"type": "http.response.body", "body": body})


async def refuse(send: Send, error: GatewayError, request_id: str, dialect: Dialect) -> None:
    headers = [(name.encode(), header_value(value)) for name, value in error.headers.items()]
    await respond(send, dialect.error_body(error, request_id), headers, error.status)
