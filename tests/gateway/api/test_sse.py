"""The bytes of a stream: order, heartbeats, in-band errors, and readers that stop reading."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.api.sse import EventStream, frame


class Wire:
    """An ASGI `send` that remembers; with a `gate`, bodies wait for it (a full socket)."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.gate: asyncio.Event | None = None

    async def __call__(self, message: Any) -> None:
        if self.gate is not None and message["type"] == "http.response.body":
            await self.gate.wait()
        self.messages.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)


def ignore() -> None: ...


async def test_a_stream_starts_once_and_ends_with_done() -> None:
    wire = Wire()
    async with EventStream(wire, [(b"x-a", b"1")], ignore) as events:
        await events.write(frame({"a": 1}))
        await events.finish(frame({"b": "ñ"}))
    assert wire.body == 'data: {"a":1}\n\ndata: {"b":"ñ"}\n\ndata: [DONE]\n\n'.encode()
    assert [message["type"] for message in wire.messages].count("http.response.start") == 1
    assert (b"x-a", b"1") in wire.messages[0]["headers"]
    assert wire.messages[-1]["more_body"] is False


async def test_a_failure_ends_without_done() -> None:
    wire = Wire()
    async with EventStream(wire, [], ignore) as events:
        await events.write(frame({"a": 1}))
        await events.fail({"error": {"code": "x"}})
    assert wire.body == b'data: {"a":1}\n\ndata: {"error":{"code":"x"}}\n\n'
    assert wire.messages[-1]["more_body"] is False


async def test_a_quiet_stream_is_kept_alive_by_comments() -> None:
    wire = Wire()
    async with EventStream(wire, [], ignore, heartbeat_s=0.02) as events:
        await events.write(frame({"a": 1}))
        await asyncio.sleep(0.15)
        await events.finish(b"")
    assert wire.body.count(b": ping\n\n") >= 2
    assert wire.body.endswith(b"data: [DONE]\n\n")


async def test_nothing_is_sent_before_the_first_frame() -> None:
    wire = Wire()
    async with EventStream(wire, [], ignore, heartbeat_s=0.01):
        await asyncio.sleep(0.05)
    assert wire.messages == []


async def test_a_reader_that_stops_reading_is_let_go() -> None:
    wire = Wire()
    wire.gate = asyncio.Event()
    told: list[bool] = []

    async def write() -> None:
        async with EventStream(wire, [], lambda: told.append(True), heartbeat_s=0.02, stall_s=0.05) as events:
            await events.write(frame({"a": 1}))

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.create_task(write()), 2)
    assert told == [True]
