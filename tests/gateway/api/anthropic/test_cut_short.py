"""An answer that the process ends is told so in Anthropic's form, before it has begun and in the middle of a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.api.anthropic.dialect import ANTHROPIC
from gateway.api.anthropic.events import PING, broken_off
from gateway.api.early_stream import EarlyStream
from gateway.api.sse import SSE_HEADERS


@pytest.mark.parametrize("begun", [False, True])
async def test_a_request_under_which_the_gateway_stops_is_told_so(begun: bool) -> None:
    told: list[Any] = []

    async def send(message: Any) -> None:
        told.append(message)

    sent = EarlyStream(send, ANTHROPIC, broken_off, PING)
    if begun:
        await sent({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
        await sent({"type": "http.response.body", "body": b"event: message_start\n\n", "more_body": True})
    await sent.cut_short("r-1")
    last = told[-1]["body"]
    if begun:
        first, second = last.decode().strip().split("\n")
        assert (first, told[-1]["more_body"]) == ("event: error", False)
        last = second.removeprefix("data: ")
    body = json.loads(last)
    assert (body["type"], body["request_id"]) == ("error", "r-1")
    assert (body["error"]["type"], body["error"]["code"]) == ("api_error", "gateway_stopping")
