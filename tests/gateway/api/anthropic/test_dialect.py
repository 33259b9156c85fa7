"""Errors and headers of Anthropic's routes: its envelope whoever refuses, and its names for what the limits say."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest

from gateway.api.anthropic.dialect import ANTHROPIC, dialect_of, error_type
from gateway.api.http.admission import InFlight
from gateway.api.http.dialects import OPENAI
from gateway.api.http.edge_middleware import EdgeMiddleware
from gateway.api.http.startup_app import BootProgress, StartupApp
from gateway.flow.context import SystemIds
from gateway.limits.headers import duration_s, duration_text
from tests.fakes.manual_clock import ManualClock
from tests.fakes.stage import Stage

ASK: dict[str, Any] = {"model": "mini", "max_tokens": 8, "messages": [{"role": "user", "content": "Hola"}]}
PATH = "/v1/messages"


@pytest.mark.parametrize(
    ("path", "headers", "dialect"),
    [
        ("/v1/messages", [], ANTHROPIC),
        ("/v1/messages/count_tokens", [], ANTHROPIC),
        ("/v1/messages/batches", [], ANTHROPIC),
        ("/v1/messagesX", [], OPENAI),
        ("/v1/chat/completions", [(b"anthropic-version", b"2023-06-01")], OPENAI),
        ("/v1/models", [], OPENAI),
        ("/v1/models", [(b"anthropic-version", b"2023-06-01")], ANTHROPIC),
        ("/v1/models/m", [(b"anthropic-version", b"2023-06-01")], ANTHROPIC),
    ],
)
def test_the_dialect_goes_by_the_path(path: str, headers: list[tuple[bytes, bytes]], dialect: Any) -> None:
    assert dialect_of({"path": path, "headers": headers}) is dialect


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (400, "invalid_json", "invalid_request_error"),
        (401, "invalid_token", "authentication_error"),
        (403, "model_not_permitted", "permission_error"),
        (404, "model_not_found", "not_found_error"),
        (408, "request_timeout", "timeout_error"),
        (413, "request_too_large", "request_too_large"),
        (415, "unsupported_media_type", "invalid_request_error"),
        (429, "budget_exceeded", "rate_limit_error"),
        (500, "internal_error", "api_error"),
        (502, "upstream_failed", "api_error"),
        (503, "overloaded", "overloaded_error"),
        (503, "audit_unavailable", "api_error"),
        (503, "deadline_exceeded", "timeout_error"),
    ],
)
def test_the_type_of_an_error_is_one_of_anthropics(status: int, code: str, expected: str) -> None:
    assert error_type(status, code) == expected


@pytest.mark.parametrize("seconds", [0, 1, 59, 60, 61, 3599, 3600, 3661, 90_000])
def test_a_duration_is_read_as_it_was_written(seconds: int) -> None:
    assert duration_s(duration_text(seconds)) == seconds


def envelope(answer: httpx2.Response) -> dict[str, Any]:
    """The error, whose envelope must be Anthropic's."""
    body = answer.json()
    assert body["type"] == "error"
    assert body["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
    error: dict[str, Any] = body["error"]
    assert error["details"]["error_code"] == error["code"]
    return error


@pytest.mark.parametrize(
    ("changes", "status", "kind", "code"),
    [
        ({"headers": {}}, 401, "authentication_error", "missing_token"),
        ({"headers": {"x-api-key": "nobody"}}, 401, "authentication_error", "invalid_token"),
        ({"headers": {"x-api-key": "a", "authorization": "Bearer b"}}, 400, "invalid_request_error", None),
        ({"json": {**ASK, "model": "none"}}, 404, "not_found_error", "model_not_found"),
        ({"content": b"{"}, 400, "invalid_request_error", "invalid_json"),
        ({"content": b"x" * (5 << 20)}, 413, "request_too_large", "request_too_large"),
        ({"json": {}}, 400, "invalid_request_error", "missing_required_parameter"),
        ({"extra": {"content-type": "text/plain"}}, 415, "invalid_request_error", "unsupported_media_type"),
        ({"extra": {"anthropic-version": "latest"}}, 400, "invalid_request_error", "invalid_value"),
        ({"extra": {"last-event-id": "7"}}, 400, "invalid_request_error", "unsupported_header"),
        ({"extra": {f"x-{number}": "1" for number in range(100)}}, 431, "invalid_request_error", "headers_too_large"),
        ({"path": "/v1/messages/batches"}, 404, "not_found_error", "not_found"),
        ({"method": "GET"}, 405, "not_found_error", "method_not_allowed"),
    ],
)
def test_whoever_refuses_speaks_anthropics_dialect(
    stage: Stage, changes: dict[str, Any], status: int, kind: str, code: str | None
) -> None:
    sent = {"content-type": "application/json", **changes.get("headers", stage.headers()), **changes.get("extra", {})}
    content = changes.get("content", json.dumps(changes.get("json", ASK)).encode())
    method, path = changes.get("method", "POST"), changes.get("path", PATH)
    answer = httpx2.request(method, stage.url + path, headers=sent, content=content, timeout=30)
    assert answer.status_code == status, answer.text
    error = envelope(answer)
    assert error["type"] == kind
    assert code is None or error["code"] == code


def test_a_role_without_the_model_is_refused_in_it_too(stage: Stage) -> None:
    answer = httpx2.post(stage.url + PATH, json=ASK, headers=stage.headers("auditor"))
    assert (answer.status_code, envelope(answer)["type"]) == (403, "permission_error")


def test_other_routes_keep_openais_envelope(stage: Stage) -> None:
    answer = httpx2.post(f"{stage.url}/v1/chat/completions", json={}, headers=stage.headers())
    assert answer.json().keys() == {"error"}
    assert "request-id" not in answer.headers


def test_limits_are_told_under_both_names(stage: Stage) -> None:
    headers = stage.headers("capped", sub="u-dialect")
    first = httpx2.post(stage.url + PATH, json=ASK, headers=headers)
    assert first.headers["anthropic-ratelimit-requests-limit"] == first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["anthropic-ratelimit-requests-remaining"] == "1"
    httpx2.post(stage.url + PATH, json=ASK, headers=headers)
    third = httpx2.post(stage.url + PATH, json=ASK, headers=headers)
    assert (third.status_code, envelope(third)["type"]) == (429, "rate_limit_error")
    assert int(third.headers["retry-after"]) >= 1
    assert third.headers["anthropic-ratelimit-requests-remaining"] == "0"
    assert third.headers["anthropic-ratelimit-requests-reset"] > "2026"


def test_hints_and_betas_are_told(stage: Stage) -> None:
    headers = {**stage.headers(), "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14"}
    answer = httpx2.post(
        f"{stage.url}{PATH}?beta=true", json={**ASK, "thinking": {"type": "adaptive"}}, headers=headers
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-esclusa-ignored"] == "thinking, anthropic-beta"


async def test_a_full_gateway_and_one_that_starts_are_overloaded() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def never(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("nobody gets in")

    async def receive() -> Any:
        return await asyncio.get_running_loop().create_future()

    scope: Any = {
        "type": "http",
        "method": "POST",
        "path": PATH,
        "http_version": "1.1",
        "headers": [(b"host", b"gw")],
        "client": None,
    }
    full = EdgeMiddleware(
        never,
        clock=ManualClock(),
        ids=SystemIds(),
        in_flight=InFlight(),
        max_in_flight=0,
        max_header_bytes=2000,
        request_timeout_s=60.0,
        dialect_of=dialect_of,
    )
    await full(dict(scope), receive, send)
    await StartupApp(BootProgress(), SystemIds(), dialect_of=dialect_of)(dict(scope), receive, send)
    bodies = [json.loads(message["body"]) for message in sent if "body" in message]
    assert [message["status"] for message in sent if "status" in message] == [503, 503]
    assert [body["error"]["type"] for body in bodies] == ["overloaded_error", "overloaded_error"]
    assert [body["error"]["code"] for body in bodies] == ["overloaded", "gateway_starting"]
