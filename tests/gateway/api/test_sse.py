"""The bytes of a stream: order, heartbeats, and in-band errors."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.api.sse import EventStream, frame


class Wire:
    """An ASGI `send` that remembers."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    async def __call__(self, message: Any) -> None:
        self.messages.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)


async def test_a_stream_starts_once_and_ends_with_done() -> None:
    wire = Wire()
    async with EventStream(wire, [(b"x-a", b"1")]) as events:
        await events.write(frame({"a": 1}))
        await events.finish(frame({"b": "ñ"}))
    assert wire.body == 'data: {"a":1}\n\ndata: {"b":"ñ"}\n\ndata: [DONE]\n\n'.encode()
    assert [message["type"] for message in wire.messages].count("http.response.start") == 1
    assert (b"x-a", b"1") in wire.messages[0]["headers"]
    assert wire.messages[-1]["more_body"] is False


async def test_a_failure_ends_without_done() -> None:
    wire = Wire()
    async with EventStream(wire, []) as events:
        await events.write(frame({"a": 1}))
        await events.end(frame({"error": {"code": "x"}}))
    assert wire.body == b'data: {"a":1}\n\ndata: {"error":{"code":"x"}}\n\n'
    assert wire.messages[-1]["more_body"] is False


async def test_an_api_may_have_a_ping_of_its_own() -> None:
    wire = Wire()
    async with EventStream(wire, [], heartbeat_s=0.02, ping=b"event: ping\n\n") as events:
        await events.write(frame({"a": 1}))
        async with asyncio.timeout(20):
            while b"event: ping\n\n" not in wire.body:  # noqa: ASYNC110 - the wire tells nobody
                await asyncio.sleep(0.005)
        await events.end(b"event: stop\n\n")
    assert wire.body.endswith(b"event: stop\n\n")
    assert b"[DONE]" not in wire.body


async def test_a_quiet_stream_is_kept_alive_by_comments() -> None:
    wire = Wire()
    async with EventStream(wire, [], heartbeat_s=0.02) as events:
        await events.write(frame({"a": 1}))
        async with asyncio.timeout(20):
            while wire.body.count(b": ping\n\n") < 2:  # noqa: ASYNC110 - the wire tells nobody
                await asyncio.sleep(0.01)
        await events.finish(b"")
    assert wire.body.endswith(b"data: [DONE]\n\n")


async def test_nothing_is_sent_before_the_first_frame() -> None:
    wire = Wire()
    async with EventStream(wire, [], heartbeat_s=0.01):
        await asyncio.sleep(0.05)
    assert wire.messages == []
