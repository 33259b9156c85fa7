"""Bodies of the admin API: read with a cap, strict JSON, unknown fields refused with 422. Knows no resource."""

from __future__ import annotations

import asyncio
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import ClientDisconnect, Request

from gateway.api.bounds import FewFields
from gateway.api.http.body import LONG, parse_json
from gateway.api.http.errors import refusal_of
from gateway.errors import InvalidRequest, RequestTimeout, RequestTooLarge, UnsupportedMediaType

MAX_BYTES = 1024 * 1024
TIMEOUT_S = 30.0
YAML_TYPES = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")
JSON_TYPES = ("application/json",)

Schema = TypeVar("Schema", bound=BaseModel)


class AdminBody(FewFields):
    """Base of every JSON body that the admin API takes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Page(BaseModel):
    """Base of every list: `next_cursor` is opaque and leads to the next page."""

    object: Literal["list"] = "list"
    has_more: bool = False
    next_cursor: str | None = None
    total: int


async def read_raw(request: Request, *, max_bytes: int = MAX_BYTES) -> bytes:
    """The whole body. Raises `RequestTooLarge` (413), `RequestTimeout` (408), `UnsupportedMediaType` (415)."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType("Compressed bodies are not accepted.")
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(TIMEOUT_S):
            async for part in request.stream():
                size += len(part)
                if size > max_bytes:
                    raise RequestTooLarge(f"The body is larger than {max_bytes} bytes.")
                parts.append(part)
    except TimeoutError:
        raise RequestTimeout(f"The body did not arrive within {TIMEOUT_S:g} s.") from None
    except ClientDisconnect:
        raise InvalidRequest("The client hung up while the body was being read.", code="client_disconnect") from None
    return b"".join(parts)


async def read_document(request: Request) -> tuple[bytes, Literal["yaml", "json"]]:
    """A document in either syntax, told apart by `Content-Type`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in YAML_TYPES:
        return await read_raw(request), "yaml"
    if kind in JSON_TYPES:
        return await read_raw(request), "json"
    raise UnsupportedMediaType(
        "The body must be a policy document.", hint="send `Content-Type: application/yaml` or `application/json`"
    )


async def read_model(request: Request, schema: type[Schema]) -> Schema:
    """A JSON body as `schema`. Raises 400 for what is not JSON, 422 for what does not fit."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in JSON_TYPES:
        raise UnsupportedMediaType("The body must be JSON.", hint="send `Content-Type: application/json`")
    raw = await read_raw(request)
    return _read(raw, schema) if len(raw) < LONG else await asyncio.to_thread(_read, raw, schema)


def _read(raw: bytes, schema: type[Schema]) -> Schema:
    data = parse_json(raw)
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        refused = refusal_of(error, unknown_code="unknown_field")
        refused.status = 422
        raise refused from None


def json_body(schema: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route that reads `schema` by `read_model`; nested models are written out in place."""
    described = schema.model_json_schema()
    inlined = _inline(described, described.pop("$defs", {}))
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": inlined}}}}


def _inline(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inline(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    reference = node.get("$ref")
    if isinstance(reference, str):
        return _inline(definitions[reference.rpartition("/")[2]], definitions)
    return {name: _inline(value, definitions) for name, value in node.items()}


def document_body() -> dict[str, Any]:
    """`openapi_extra` of a route that reads a policy document by `read_document`."""
    content = {
        "application/yaml": {"schema": {"type": "string", "description": "a PolicySet, comments are kept"}},
        "application/json": {"schema": {"$ref": "#/components/schemas/PolicySet"}},
    }
    return {"requestBody": {"required": True, "content": content}}
