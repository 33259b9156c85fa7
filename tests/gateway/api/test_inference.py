"""The endpoint alone: a bug while rendering is a 500 of ours, whole or in the stream, and still concluded."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from gateway.api.http.body import BodyReader
from gateway.api.inference import Inference
from gateway.api.render import ChatFormat
from tests.fakes.parts import ASK, Bench


class BrokenShape(ChatFormat):
    def delta(self, delta: Any, finish_reason: Any, offsets: Any) -> dict[str, Any]:
        raise ZeroDivisionError("secret text")

    def whole(self, index: int, parts: Any) -> dict[str, Any]:
        raise ZeroDivisionError("secret text")


async def call(bench: Bench, shape: ChatFormat, *, stream: bool, gone: bool = False) -> tuple[int, bytes]:
    endpoint = Inference(
        bench.pipeline(),
        BodyReader(max_bytes=1000, timeout_s=1.0),
        lambda value: replace(ASK, stream=stream),
        shape,
    )
    arrived = [{"type": "http.disconnect"} if gone else {"type": "http.request", "body": b"{}", "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        if not arrived:
            await asyncio.sleep(3600)
        return arrived.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"authorization", b"Bearer x")]
    await endpoint({"headers": headers, "state": {"context": bench.incoming().context}}, receive, send)
    if not sent:
        return 0, b""
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


async def test_a_bug_while_rendering_is_a_bare_500(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    status, body = await call(bench, BrokenShape(), stream=False)
    assert (status, json.loads(body)["error"]["code"]) == (500, "internal_error")
    assert b"secret" not in body
    assert len(bench.limiter.settled) == 1
    assert "ZeroDivisionError" in caplog.text


async def test_a_bug_in_the_middle_of_a_stream_is_told_in_band(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    status, body = await call(bench, BrokenShape(), stream=True)
    assert status == 200 or json.loads(body)["error"]["code"] == "internal_error"
    assert b"internal_error" in body
    assert b"[DONE]" not in body
    assert b"secret" not in body
    assert len(bench.limiter.settled) == 1


async def test_a_client_that_left_while_sending_its_body_gets_nothing_and_is_on_record() -> None:
    bench = Bench()
    assert await call(bench, ChatFormat(), stream=False, gone=True) == (0, b"")
    assert bench.completion.outcome == "client_disconnect"


async def test_a_refusal_is_rendered_with_its_headers() -> None:
    bench = Bench()
    bench.access.allowed = set()
    status, body = await call(bench, ChatFormat(), stream=False)
    assert status == 403
    assert json.loads(body)["error"]["code"] == "model_not_permitted"
