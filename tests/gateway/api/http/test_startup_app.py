"""The door before the gateway stands: what it says, and that every answer can be named."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from gateway.api.http.startup_app import BootProgress, StartupApp
from gateway.flow.context import SystemIds


async def ask(path: str) -> tuple[int, dict[bytes, bytes], Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    await StartupApp(BootProgress(), SystemIds())({"type": "http", "path": path}, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"]), json.loads(sent[1]["body"])


async def test_a_refusal_before_the_gateway_stands_has_a_request_id() -> None:
    status, headers, body = await ask("/v1/chat/completions")
    assert (status, body["error"]["code"]) == (503, "gateway_starting")
    assert body["error"]["request_id"] == headers[b"x-request-id"].decode()
    assert UUID(body["error"]["request_id"]).version == 7


@pytest.mark.parametrize(("path", "status"), [("/livez", 200), ("/readyz", 503)])
async def test_a_probe_before_the_gateway_stands_has_a_request_id(path: str, status: int) -> None:
    answered, headers, _ = await ask(path)
    assert answered == status
    assert b"x-request-id" in headers


@pytest.mark.parametrize("path", ["/readyz", "/health"])
async def test_a_gateway_that_is_being_left_says_so_to_probes_and_serves_the_rest(path: str) -> None:
    served: list[str] = []

    async def gateway(scope: Any, receive: Any, send: Any) -> None:
        served.append(scope["path"])

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    lobby = StartupApp(BootProgress(), SystemIds())
    lobby.open(gateway)
    lobby.leave()
    for asked in (path, "/livez", "/v1/chat/completions"):
        await lobby({"type": "http", "path": asked}, None, send)  # type: ignore[arg-type]
    assert served == ["/livez", "/v1/chat/completions"]
    assert (sent[0]["status"], json.loads(sent[1]["body"])["status"]) == (503, "draining")
