"""A stream begins before its first token where that takes long, and whatever happens then is told within it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest

from gateway.api import early_stream
from gateway.api.early_stream import EarlyStream
from gateway.api.http.dialects import OPENAI, openai_error
from gateway.api.sse import PING, SSE_HEADERS, EventStream, frame
from gateway.errors import GatewayError, Unavailable
from tests.fakes.stage import Stage


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_stream, "HEARTBEAT_S", 0.02)


class Wire:
    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.pinged = asyncio.Event()

    async def __call__(self, message: Any) -> None:
        self.messages.append(message)
        if message.get("body") == PING:
            self.pinged.set()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def starts(self) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["type"] == "http.response.start"]


def broken_off(error: GatewayError, request_id: str) -> bytes:
    return frame(openai_error(error, request_id))


async def opened(wire: Wire) -> EarlyStream:
    sent = EarlyStream(wire, OPENAI, broken_off, PING)
    sent.expect([(b"x-esclusa-model", b"mini")])
    async with asyncio.timeout(20):
        await wire.pinged.wait()
    return sent


async def test_who_waits_gets_headers_and_heartbeats_and_then_the_answer_in_the_same_stream() -> None:
    wire = Wire()
    sent = await opened(wire)
    async with EventStream(sent, [(b"x-esclusa-model", b"mini")]) as events:
        await events.finish(frame({"a": 1}))
    sent.close()
    assert len(wire.starts) == 1
    assert wire.starts[0]["status"] == 200
    assert set(SSE_HEADERS) <= set(wire.starts[0]["headers"])
    assert (b"x-esclusa-model", b"mini") in wire.starts[0]["headers"]
    assert wire.body.replace(PING, b"") == b'data: {"a":1}\n\ndata: [DONE]\n\n'


async def test_a_refusal_that_comes_too_late_for_a_status_is_told_in_the_stream() -> None:
    wire = Wire()
    sent = await opened(wire)
    await sent.refuse(Unavailable("No engine.", code="engine_unavailable"), "r-1")
    sent.close()
    assert len(wire.starts) == 1
    last = wire.body.replace(PING, b"").removeprefix(b"data: ")
    assert json.loads(last)["error"]["code"] == "engine_unavailable"
    assert wire.messages[-1]["more_body"] is False


async def test_a_refusal_in_time_has_its_status() -> None:
    wire = Wire()
    sent = EarlyStream(wire, OPENAI, broken_off, PING)
    sent.expect([])
    await sent.refuse(Unavailable("No engine.", code="engine_unavailable"), "r-1")
    sent.close()
    assert [start["status"] for start in wire.starts] == [503]


async def test_a_gateway_that_stops_tells_those_who_still_wait() -> None:
    wire = Wire()
    sent = await opened(wire)
    await sent.cut_short("r-1")
    sent.close()
    assert b"gateway_stopping" in wire.body
    assert wire.messages[-1]["more_body"] is False


async def test_nothing_is_sent_to_who_is_answered_at_once() -> None:
    wire = Wire()
    sent = EarlyStream(wire, OPENAI, broken_off, PING)
    sent.close()
    await asyncio.sleep(0.05)
    assert wire.messages == []


def test_over_http_the_first_bytes_are_heartbeats_while_the_model_is_slow(stage: Stage) -> None:
    stage.upstream.mode, stage.upstream.delay_s = "slow", 0.3
    body = {"model": "mini", "messages": [{"role": "user", "content": "Hola"}], "stream": True}
    answer = httpx2.post(f"{stage.url}/v1/chat/completions", json=body, headers=stage.headers(), timeout=30)
    assert answer.status_code == 200
    assert answer.text.startswith(": ping\n\n")
    assert answer.headers["x-esclusa-model"] == "mini"
    assert answer.text.endswith("data: [DONE]\n\n")
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == "Hola, mundo!"


def test_a_whole_answer_never_begins_early(stage: Stage) -> None:
    stage.upstream.mode, stage.upstream.delay_s = "slow", 0.1
    body = {"model": "mini", "messages": [{"role": "user", "content": "Hola"}]}
    answer = httpx2.post(f"{stage.url}/v1/chat/completions", json=body, headers=stage.headers(), timeout=30)
    assert answer.json()["choices"][0]["message"]["content"] == "Hola, mundo!"


def test_usage_in_every_chunk_grows_to_the_bill(stage: Stage) -> None:
    body = {
        "model": "mini",
        "messages": [{"role": "user", "content": "Hola"}],
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    answer = httpx2.post(f"{stage.url}/v1/chat/completions", json=body, headers=stage.headers(), timeout=30)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    counts = [event["usage"]["completion_tokens"] for event in events if event["choices"] and event["usage"]]
    assert len(counts) > 2
    assert counts == sorted(counts)
    assert events[-1]["usage"]["completion_tokens"] >= counts[-1]
