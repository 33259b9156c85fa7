"""Every error as an answer: its wording, and the handlers that catch what is raised outside our own tree. Its object is
that of the request's dialect.

The input is never echoed, and no stack trace, SQL or path leaves; the log has the rest under the request id.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gateway.api.http.dialects import dialect_in
from gateway.api.http.expectations import expectation, public_path
from gateway.descriptors import is_shortage, no_descriptor
from gateway.documents.validation_messages import is_type_error
from gateway.errors import GatewayError, InvalidRequest, UnknownField

MAX_ERRORS = 512
"""More than one object of a request can have: a list or a map gives one, an object one for each of its fields."""
_log = logging.getLogger("esclusa.api")


def error_response(error: GatewayError, scope: MutableMapping[str, Any]) -> Response:
    """Rendered, and its code left in the scope for those who count answers."""
    state = scope.setdefault("state", {})
    state["error_code"] = error.code
    context = state.get("context")
    return Response(
        dialect_in(scope).error_body(error, str(context.request_id) if context is not None else None),
        status_code=error.status,
        headers=error.headers,
        media_type="application/json",
    )


def refusal_of(error: ValidationError, *, unknown_code: str = "unsupported_parameter") -> GatewayError:
    """What pydantic found, as one error. Errors are made into objects only where they are few: what a refusal costs
    does not depend on how much is wrong."""
    if error.error_count() > MAX_ERRORS:
        return InvalidRequest(f"More than {MAX_ERRORS} fields are wrong.", code="invalid_value")
    return invalid_fields(error.errors(include_url=False, include_input=False), unknown_code=unknown_code)


def invalid_fields(errors: Sequence[Mapping[str, Any]], *, unknown_code: str = "unsupported_parameter") -> GatewayError:
    """One error from pydantic's list: the first field, its public path and what was expected, never its value."""
    root = errors[0]["loc"][:1]
    # A value that fits no member of a union gives one error for each: the deepest tells what was meant.
    same = [error for error in errors if error["loc"][:1] == root]
    path = max((public_path(error["loc"]) for error in same), key=len)
    reported = [error for error in same if public_path(error["loc"]) == path]
    first = next((error for error in reported if not is_type_error(str(error["type"]))), reported[0])
    param, kind = ".".join(path[:8])[:128] or None, str(first["type"])
    if kind == "extra_forbidden":
        if unknown_code == "unknown_field":
            return UnknownField(f"`{_name(param)}` is not a field of this resource.", param=_name(param))
        return InvalidRequest(
            f"`{_name(param)}` is not supported.", code=unknown_code, param=_name(param), hint="remove the parameter"
        )
    if kind == "missing":
        return InvalidRequest(f"`{param}` is required.", code="missing_required_parameter", param=param)
    if kind in ("value_error", "assertion_error"):
        reason = str(first.get("ctx", {}).get("error", "")) or "is not valid"
        return InvalidRequest(f"`{param}` {reason}." if param else f"{reason}.", code="invalid_value", param=param)
    if kind == "union_tag_not_found":
        return InvalidRequest(f"`{param}.type` is required.", code="missing_required_parameter", param=f"{param}.type")
    if kind == "union_tag_invalid":  # pydantic's own words would repeat the tag
        expected = first.get("ctx", {}).get("expected_tags", "a known type")
        message = f"`{param}.type` must be one of {expected}."
        return InvalidRequest(message, code="invalid_value", param=f"{param}.type")
    code = "invalid_type" if is_type_error(kind) else "invalid_value"
    subject = f"`{param}`" if param else "The body"
    return InvalidRequest(f"{subject} {expectation(reported, first, path)}.", code=code, param=param)


def _name(param: str | None) -> str:
    """A field name chosen by the caller: shown only when it looks like one."""
    return param if param is not None and param.replace(".", "").replace("_", "").isalnum() else "(an unknown field)"


async def _gateway_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, GatewayError):
        raise error
    return error_response(error, request.scope)


_ABSENT = (
    "OpenAI-compatible paths begin with `/v1` (a client's base URL ends with it; that of Anthropic's clients does not) "
    "and have no trailing slash"
)
_KNOWN = {
    "/v1/assistants": "agents are served by `/v1/responses` with `tools`",
    "/v1/audio": "no model here hears or speaks; send text",
    "/v1/complete": "send `/v1/messages` or `/v1/completions`",
    "/v1/edits": "send `/v1/chat/completions`",
    "/v1/evals": "export the audit trail and evaluate outside",
    "/v1/fine_tuning": "models are trained outside and served by configuration",
    "/v1/images": "no model here sees or draws; send text",
    "/v1/realtime": "stream `/v1/chat/completions` or `/v1/responses`",
    "/v1/threads": "conversations are served by `/v1/responses`",
    "/v1/uploads": "send the file in one request to `/v1/files`",
    "/v1/vector_stores": "send `/v1/embeddings` and keep the vectors yourself",
    "/v1/videos": "no model here sees or draws; send text",
    "/api/chat": "this is Ollama's own path; send `/v1/chat/completions`",
    "/api/generate": "this is Ollama's own path; send `/v1/completions`",
    "/openai/deployments": "Azure's paths are not served; use the client without Azure, its base URL ending with `/v1`",
}
"""Paths of well-known APIs that are not served, and what is."""


def absent_hint(path: str) -> str:
    return next((hint for known, hint in _KNOWN.items() if path == known or path.startswith(known + "/")), _ABSENT)


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    texts = {
        404: ("not_found", "This path does not exist."),
        405: ("method_not_allowed", "This path does not take this method."),
    }
    code, message = texts.get(status, ("invalid_request", "The request could not be served."))
    hint = absent_hint(request.url.path) if status == 404 else None
    refused = GatewayError(message, code=code, hint=hint, headers=getattr(error, "headers", None))
    refused.status = status
    refused.type = "invalid_request_error" if status < 500 else "server_error"
    return error_response(refused, request.scope)


async def _validation_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    return error_response(refused_parameters(error, request), request.scope)


def refused_parameters(error: RequestValidationError, request: Request) -> GatewayError:
    """422 for what the framework found wrong in path or query."""
    errors = list(error.errors())[:MAX_ERRORS]
    if not errors:
        refused: GatewayError = InvalidRequest("The body is wrong.")
    elif errors[0]["loc"][:1] == ("query",) and errors[0]["type"] == "extra_forbidden":
        name = _name(str(errors[0]["loc"][-1]))
        valid = ", ".join(f"`{known}`" for known in query_names(request.scope.get("route")))
        refused = UnknownField(f"Unknown query parameter `{name}`. Valid: {valid}.", param=name)
    else:
        refused = invalid_fields(errors, unknown_code="unknown_field")
        value = request.query_params.get(refused.param or "", "")
        if str(errors[0]["type"]).startswith("datetime") and " " in value:
            refused.hint = "write the plus sign of an offset as %2B, or give the time in UTC with `Z`"
    refused.status = 422
    return refused


def query_names(route: Any) -> list[str]:
    """The query parameters that a route takes, by their public names."""
    names: list[str] = []
    for field in getattr(getattr(route, "dependant", None), "query_params", ()):
        kind = field.field_info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            names += [info.alias or name for name, info in kind.model_fields.items()]
        else:
            names.append(field.alias)
    return names


async def _unexpected(request: Request, error: Exception) -> Response:
    if is_shortage(error):
        return error_response(no_descriptor(), request.scope)
    _log.error("unexpected failure in a route", exc_info=error)
    return error_response(GatewayError("The gateway failed on this request."), request.scope)


def install_handlers(app: FastAPI) -> None:
    app.add_exception_handler(GatewayError, _gateway_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(Exception, _unexpected)
