"""Anthropic's dialect: its envelope around our errors, its names for the id and the rate limits of an answer.

Pure. The status of an error is the one of every other route, so that records, metrics and proxies agree: an overloaded
gateway answers 503 with `retry-after`, which Anthropic's clients retry as they do 529.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from gateway.api.http.dialects import OPENAI, Dialect, HeaderLines
from gateway.errors import GatewayError
from gateway.flow.context import RequestContext
from gateway.limits.headers import duration_s

MESSAGES = "/v1/messages"
MODELS = "/v1/models"
VERSION_HEADER = b"anthropic-version"
TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
"""By status. Any other of the caller's faults is an `invalid_request_error`, any of ours an `api_error`."""
TYPES_BY_CODE: Mapping[str, str] = {
    "overloaded": "overloaded_error",
    "model_loading": "overloaded_error",
    "gateway_starting": "overloaded_error",
    "deadline_exceeded": "timeout_error",
}
_KINDS = (b"requests", b"tokens")


def error_type(status: int, code: str) -> str:
    found = TYPES_BY_CODE.get(code) or TYPES.get(status)
    return found or ("invalid_request_error" if status < 500 else "api_error")


def error_object(error: GatewayError, request_id: str | None) -> dict[str, Any]:
    """Our code, parameter and hint are where all our errors have them; Anthropic's SDKs show the code of `details`."""
    told: dict[str, Any] = {"type": error_type(error.status, error.code), "message": error.message, "code": error.code}
    if error.param is not None:
        told["param"] = error.param
    if error.hint is not None:
        told["hint"] = error.hint
    told["details"] = {"error_code": error.code}
    return {"type": "error", "error": told, "request_id": request_id}


def header_lines(sent: HeaderLines, context: RequestContext) -> HeaderLines:
    """The id and the rate limits of an answer under Anthropic's names; a reset is a time there, not a duration."""
    known = dict(sent)
    found = [(b"request-id", str(context.request_id).encode())]
    for kind in _KINDS:
        for figure in (b"limit", b"remaining"):
            if (value := known.get(b"x-ratelimit-%b-%b" % (figure, kind))) is not None:
                found.append((b"anthropic-ratelimit-%b-%b" % (kind, figure), value))
        if (value := known.get(b"x-ratelimit-reset-%b" % kind)) is not None:
            reset = context.received_at.replace(microsecond=0) + timedelta(seconds=duration_s(value.decode()) + 1)
            found.append((b"anthropic-ratelimit-%b-reset" % kind, f"{reset:%Y-%m-%dT%H:%M:%SZ}".encode()))
    return found


ANTHROPIC = Dialect(error_object, header_lines)


def dialect_of(scope: Mapping[str, Any]) -> Dialect:
    """By path; the list of models has both shapes, and is asked for in this one with `anthropic-version`."""
    path: str = scope["path"]
    if path == MESSAGES or path.startswith(MESSAGES + "/"):
        return ANTHROPIC
    if path == MODELS or path.startswith(MODELS + "/"):
        return ANTHROPIC if any(name == VERSION_HEADER for name, _ in scope["headers"]) else OPENAI
    return OPENAI
