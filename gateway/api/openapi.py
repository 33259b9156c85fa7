"""The OpenAPI document: FastAPI's own, plus the routes that read their bodies themselves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from gateway.api.schemas import ChatBody, CompletionBody, EmbeddingBody

ROUTES: dict[str, tuple[type[BaseModel], str]] = {
    "/v1/chat/completions": (ChatBody, "A chat answer, streamed or whole"),
    "/v1/completions": (CompletionBody, "A text completion, streamed or whole"),
    "/v1/embeddings": (EmbeddingBody, "One vector for each input"),
}
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "code", "param", "request_id"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "code": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "hint": {"type": "string"},
                "request_id": {"type": ["string", "null"]},
            },
        }
    },
}
REFUSED = {
    "description": "Refused or failed",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}
FRAMEWORK_ERRORS = ("HTTPValidationError", "ValidationError")


def describe(app: FastAPI) -> dict[str, Any]:
    """The whole document; pure over the application's routes."""
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas["Error"] = ERROR
    components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}
    document["security"] = [{"bearer": []}]
    _describe_refusals(document)
    for path, (body, summary) in ROUTES.items():
        schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {})
        schemas[body.__name__] = schema
        document["paths"][path] = {
            "post": {
                "summary": summary,
                "tags": ["inference"],
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{body.__name__}"}}},
                },
                "responses": {
                    "200": {"description": "The answer"},
                    "default": REFUSED,
                },
            }
        }
    return document


def _describe_refusals(document: dict[str, Any]) -> None:
    """Our error body everywhere: the framework announces its own 422, which our handlers replace."""
    for name in FRAMEWORK_ERRORS:
        document["components"]["schemas"].pop(name, None)
    for path in document.get("paths", {}).values():
        for operation in path.values():
            responses = operation["responses"]
            if "HTTPValidationError" in str(responses.get("422", "")):
                del responses["422"]
            responses.setdefault("default", REFUSED)
