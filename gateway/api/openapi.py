"""The OpenAPI document: FastAPI's own, plus the routes that read their bodies themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from gateway.api.answers import (
    ChatCompletion,
    ChatCompletionChunk,
    DetokenizedView,
    EmbeddingList,
    ModerationView,
    RankingView,
    ScoresView,
    TextCompletion,
    TokenizedView,
)
from gateway.api.anthropic.answers import AnthropicError, MessageEvent, MessageView, TokensView
from gateway.api.anthropic.body import MessagesBody
from gateway.api.anthropic.count_tokens import CountBody
from gateway.api.chat import ChatBody
from gateway.api.completions import CompletionBody
from gateway.api.embeddings import EmbeddingBody
from gateway.api.moderations import PATH as MODERATIONS
from gateway.api.moderations import ModerationBody
from gateway.api.ranking import RERANK_PATHS, SCORE_PATHS, RerankBody, ScoreBody
from gateway.api.responses.answers import InputTokensView, ResponseEvent, ResponseView
from gateway.api.responses.body import ResponsesBody
from gateway.api.tokens import DETOKENIZE_PATHS, TOKENIZE_PATHS, DetokenizeBody, TokenizeBody

ROUTES: dict[str, tuple[type[BaseModel], type[BaseModel], type[BaseModel] | None, str]] = {
    "/v1/chat/completions": (ChatBody, ChatCompletion, ChatCompletionChunk, "A chat answer, streamed or whole"),
    "/v1/completions": (CompletionBody, TextCompletion, TextCompletion, "A text completion, streamed or whole"),
    "/v1/embeddings": (EmbeddingBody, EmbeddingList, None, "One vector for each input"),
    MODERATIONS: (ModerationBody, ModerationView, None, "What the guardrails find in texts"),
    **dict.fromkeys(RERANK_PATHS, (RerankBody, RankingView, None, "The documents nearest to a query")),
    **dict.fromkeys(SCORE_PATHS, (ScoreBody, ScoresView, None, "How near pairs of texts are")),
    **dict.fromkeys(TOKENIZE_PATHS, (TokenizeBody, TokenizedView, None, "The tokens of a prompt")),
    **dict.fromkeys(DETOKENIZE_PATHS, (DetokenizeBody, DetokenizedView, None, "The text of tokens")),
    "/v1/responses": (ResponsesBody, ResponseView, ResponseEvent, "An answer as items, streamed or whole"),
    "/v1/responses/input_tokens": (ResponsesBody, InputTokensView, None, "The tokens of a response's prompt"),
    "/v1/messages": (MessagesBody, MessageView, MessageEvent, "A chat answer in Anthropic's form, streamed or whole"),
    "/v1/messages/count_tokens": (CountBody, TokensView, None, "The tokens of a message, without an answer"),
}
"""Body, answer, and one event of its stream."""
ERRORS: dict[str, type[BaseModel]] = {"/v1/messages": AnthropicError, "/v1/messages/count_tokens": AnthropicError}
"""Of the routes whose errors are not in OpenAI's form."""
REFUSALS = {
    "400": "`invalid_request_error`: the body or a parameter; `context_length_exceeded`, `blocked_by_policy`",
    "401": "no credential, or one that is not accepted; `code` says why",
    "403": "`model_not_permitted`, `client_not_allowed`, `groups_overage`",
    "404": "`model_not_found`: unknown, or hidden from you",
    "408": "`request_timeout`: the body did not arrive in time",
    "413": "`request_too_large`",
    "415": "`unsupported_media_type`",
    "429": "`requests_rate_limited`, `tokens_rate_limited`, or `budget_exceeded` with `x-should-retry: false`",
    "431": "the header block is too large",
    "502": "`upstream_failed`: the model's server broke off",
    "503": "a dependency is away: `idp_unavailable`, `policy_unavailable`, `audit_unavailable`, `limits_unavailable`, "
    "`engine_unavailable`, `overloaded`, `content_key_missing`; `retry-after` says when to come back",
}
HEADERS = {
    "x-request-id": "this request, as the audit trail knows it",
    "x-client-request-id": "your own `x-request-id`, when it is a plain label",
    "x-esclusa-audit-id": "the same id, for people who look for it",
    "x-esclusa-model": "the model that answered",
    "x-esclusa-route": "how it was chosen",
    "x-esclusa-route-reason": "why",
    "x-esclusa-policy-version": "the policy that decided",
    "x-esclusa-overhead-ms": "what the gateway added before the model began",
    "x-esclusa-cost": "price of a whole answer, with its currency",
    "x-esclusa-cached-tokens": "prompt tokens that were not computed again",
    "x-esclusa-limits": "`degraded` while limits are counted by this replica alone",
    "x-esclusa-limit-warning": "windows past one of their warning marks",
    "x-ratelimit-limit-requests": "the tightest window of requests",
    "x-ratelimit-remaining-requests": "what it leaves",
    "x-ratelimit-reset-requests": "when it starts anew, as `1m30s`",
    "x-ratelimit-limit-tokens": "the tightest window of tokens",
    "x-ratelimit-remaining-tokens": "what it leaves",
    "x-ratelimit-reset-tokens": "when it starts anew",
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


def _refused(schema: dict[str, str]) -> dict[str, Any]:
    return {"description": "Refused or failed", "content": {"application/json": {"schema": schema}}}


REFUSED = _refused({"$ref": "#/components/schemas/Error"})
COMMON = {
    "401": "no credential, or one that is not accepted; `code` says why",
    "403": "`not_permitted`: the policy does not grant this to you",
    "503": "a dependency is away; `retry-after` says when to come back",
}
"""Of every route that needs a credential."""
PLACE = "#/components/schemas/"
FRAMEWORK_ERRORS = ("HTTPValidationError", "ValidationError")


class Document:
    """The document as bytes. Making it takes half a second of a core, so it is made once, in a thread, when somebody
    asks: on the event loop every running stream would stand still for it."""

    def __init__(self, make: Callable[[], dict[str, Any]]) -> None:
        self._make = make
        self._making = asyncio.Lock()
        self._text: bytes | None = None

    async def text(self) -> bytes:
        async with self._making:
            if self._text is None:
                self._text = orjson.dumps(await asyncio.to_thread(self._make))
            return self._text


def describe(app: FastAPI) -> dict[str, Any]:
    """The whole document; pure over the application's routes."""
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas["Error"] = ERROR
    components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}
    document["security"] = [{"bearer": []}]
    document["servers"] = [{"url": "/", "description": "this gateway"}]
    _describe_refusals(document)
    for path, (body, answer, event, summary) in ROUTES.items():
        names = [_schema(schemas, model) for model in (body, answer, event) if model is not None]
        refused = REFUSED if path not in ERRORS else _refused(_schema(schemas, ERRORS[path]))
        content: dict[str, Any] = {"application/json": {"schema": names[1]}}
        if event is not None:
            content["text/event-stream"] = {"schema": names[2]}
        document["paths"][path] = {
            "post": {
                "operationId": operation_id(path),
                "summary": summary,
                "tags": ["inference"],
                "requestBody": {"required": True, "content": {"application/json": {"schema": names[0]}}},
                "responses": {
                    "200": {"description": "The answer", "content": content, "headers": _headers(HEADERS)},
                    **{status: {**refused, "description": text} for status, text in REFUSALS.items()},
                    "default": refused,
                },
            }
        }
    _titled(schemas)
    return document


def operation_id(path: str) -> str:
    """Names the function that a generated client gets: `/v1/chat/completions` is `create_chat_completions`."""
    return (
        "create_" + path.removeprefix("/v1/").strip("/").replace("/", "_") + ("" if path.startswith("/v1/") else "_too")
    )


def _schema(schemas: dict[str, Any], model: type[BaseModel]) -> dict[str, str]:
    """Put `model` and what it is made of among the schemas; returns the reference to it. Of two of one name the second
    is called by its owner too: OpenAI's and Anthropic's forms use the same words for different things."""
    schema = model.model_json_schema(ref_template=PLACE + "{model}")
    parts: dict[str, Any] = schema.pop("$defs", {}) | {model.__name__: schema}
    names = {
        name: name if schemas.get(name, part) == part else f"{model.__name__}{name}" for name, part in parts.items()
    }
    for name, part in parts.items():
        schemas[names[name]] = _renamed(part, names)
    return {"$ref": PLACE + names[model.__name__]}


def _renamed(schema: Any, names: Mapping[str, str]) -> Any:
    if isinstance(schema, list):
        return [_renamed(inner, names) for inner in schema]
    if isinstance(schema, str) and schema.startswith(PLACE):
        name = schema.removeprefix(PLACE)  # a reference, or one of a discriminator's mapping
        return PLACE + names.get(name, name)
    if not isinstance(schema, dict):
        return schema
    return {key: _renamed(inner, names) for key, inner in schema.items()}


def _titled(schemas: dict[str, Any]) -> None:
    """Each by the name that it is referred to by: generators call their classes by the title."""
    for name, schema in schemas.items():
        if "title" in schema:
            schema["title"] = name


def _headers(described: dict[str, str]) -> dict[str, Any]:
    return {name: {"description": text, "schema": {"type": "string"}} for name, text in described.items()}


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
            if operation.get("tags") == ["health"]:
                operation["security"] = []
                continue
            for status, text in COMMON.items():
                responses.setdefault(status, {**REFUSED, "description": text})
