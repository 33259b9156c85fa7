"""Dialects: the object of an error, and headers, of a family of routes that differs from OpenAI's API.

Errors are made in many places: front door, admission, body reader, router, pipeline. All of them ask the request's
dialect for the body, so that a client of one API never has to read the errors of another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.errors import GatewayError
from gateway.flow.context import RequestContext

HeaderLines = Sequence[tuple[bytes, bytes]]


def openai_error(error: GatewayError, request_id: str | None) -> dict[str, Any]:
    body: dict[str, Any] = {
        "message": error.message,
        "type": error.type,
        "code": error.code,
        "param": error.param,
    }
    if error.hint is not None:
        body["hint"] = error.hint
    body["request_id"] = request_id
    return {"error": body}


@dataclass(frozen=True, slots=True)
class Dialect:
    error: Callable[[GatewayError, str | None], Mapping[str, Any]]
    """The object that a client of this API reads an error from."""
    headers: Callable[[HeaderLines, RequestContext], HeaderLines] | None = None
    """What the headers of an answer say once more under the names of this API."""

    def error_body(self, error: GatewayError, request_id: str | None) -> bytes:
        return orjson.dumps(self.error(error, request_id))


OPENAI = Dialect(openai_error)
DialectOf = Callable[[Mapping[str, Any]], Dialect]
"""The dialect of a request, from its ASGI scope."""


def every_request_openai(scope: Mapping[str, Any]) -> Dialect:  # noqa: ARG001
    return OPENAI


def dialect_in(scope: Mapping[str, Any]) -> Dialect:
    """The one that the front door has put into the scope."""
    found = scope.get("state", {}).get("dialect")
    return found if isinstance(found, Dialect) else OPENAI
