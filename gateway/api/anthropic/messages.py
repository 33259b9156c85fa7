"""`POST /v1/messages`: Anthropic's API through the same pipeline as every chat."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import orjson
from starlette.types import Receive, Scope, Send

from gateway.api.anthropic import body
from gateway.api.anthropic.dialect import MESSAGES, VERSION_HEADER
from gateway.api.anthropic.events import PING, MessageEvents, broken_off
from gateway.api.anthropic.message import message_object
from gateway.api.headers import answer_headers
from gateway.api.http.body import BodyReader
from gateway.api.http.disconnect_watcher import DisconnectWatcher
from gateway.api.http.refusing import respond
from gateway.api.inference import Inference
from gateway.api.render import ChatFormat, ChoiceBuffer, collect
from gateway.api.sse import EventStream
from gateway.errors import GatewayError, InvalidRequest
from gateway.flow.answer import Answer
from gateway.flow.boundary import BOUNDARY
from gateway.flow.pipeline import Pipeline
from gateway.flow.values import ChoiceEnd, ModelRequest

PATH = MESSAGES
BETA_HEADER = b"anthropic-beta"
_VERSION = re.compile(rb"\A20\d{2}-\d{2}-\d{2}\Z")
"""Any date: answers have the form of the latest version, which clients of older ones read too."""


class Messages(Inference):
    broken_off = staticmethod(broken_off)
    ping = PING

    async def _read(self, scope: Scope, receive: Receive, disconnect: DisconnectWatcher) -> ModelRequest:
        require_a_version(scope["headers"])
        request = await super()._read(scope, receive, disconnect)
        if any(name == BETA_HEADER for name, _ in scope["headers"]):
            return replace(request, ignored_hints=(*request.ignored_hints, BETA_HEADER.decode()))
        return request

    async def _whole(self, answer: Answer, send: Send) -> None:
        choice, end = ChoiceBuffer(), None
        async for chunk in answer:
            collect([choice], chunk)
            if isinstance(chunk, ChoiceEnd):
                end = chunk
        message = message_object(answer.reserved, answer.bill, choice, end)
        await respond(send, orjson.dumps(message), answer_headers(answer.reserved, answer.bill))

    async def _stream(self, answer: Answer, send: Send) -> None:
        events = MessageEvents(answer.reserved)
        async with EventStream(send, answer_headers(answer.reserved, None), ping=PING) as stream:
            try:
                with BOUNDARY:
                    await stream.write(events.begin())
                    async for chunk in answer:
                        if data := events.take(chunk):
                            await stream.write(data)
            except GatewayError as error:
                await stream.end(broken_off(error, str(answer.reserved.request_id)))
                return
            await stream.end(events.end(answer.bill))


def require_a_version(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raises `InvalidRequest` for what is no version of Anthropic's API. None is fine."""
    for name, value in headers:
        if name == VERSION_HEADER and _VERSION.match(value) is None:
            raise InvalidRequest(
                "`anthropic-version` is not a date.",
                code="invalid_value",
                param="anthropic-version",
                hint="send `anthropic-version: 2023-06-01`",
            )


def endpoint(pipeline: Pipeline, reader: BodyReader) -> Inference:
    return Messages(pipeline, reader, body.parse, ChatFormat())
