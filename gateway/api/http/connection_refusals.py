"""Answers given before there is a request to answer: a parser, a timer or a cap said no."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Refusal:
    status: int
    code: str
    message: str
    hint: str


MALFORMED = Refusal(
    400, "malformed_request", "The request is not valid HTTP/1.1.", "see RFC 9112; the connection is closed"
)
CONNECT_REFUSED = Refusal(405, "method_not_allowed", "CONNECT is not served.", "this is no proxy")
HEADERS_LATE = Refusal(
    408, "request_timeout", "The headers did not arrive in time.", "send the whole header block at once"
)
BODY_LATE = Refusal(408, "request_timeout", "The body did not arrive in time.", "send the body without pauses")
HEADERS_TOO_LARGE = Refusal(431, "headers_too_large", "The headers are too large.", "send fewer or shorter headers")
TOO_MANY_CONNECTIONS = Refusal(503, "overloaded", "Too many connections.", "retry after a second")


def rendered(refusal: Refusal, request_id: str) -> bytes:
    """The whole answer, which ends the connection."""
    status = HTTPStatus(refusal.status)
    error: dict[str, Any] = {
        "message": refusal.message,
        "type": "server_error" if status >= 500 else "invalid_request_error",
        "param": None,
        "code": refusal.code,
        "hint": refusal.hint,
        "request_id": request_id,
    }
    body = orjson.dumps({"error": error})
    head = [
        f"HTTP/1.1 {refusal.status} {status.phrase}",
        "content-type: application/json",
        "connection: close",
        f"x-request-id: {request_id}",
        f"content-length: {len(body)}",
    ]
    if refusal is TOO_MANY_CONNECTIONS:
        head.append("retry-after: 1")
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body
