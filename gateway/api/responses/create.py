"""`POST /v1/responses`: OpenAI's Responses API through the same pipeline as every chat."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import orjson
from starlette.types import Receive, Scope, Send

from gateway.api.headers import answer_headers
from gateway.api.http.body import BodyReader
from gateway.api.http.refusing import respond
from gateway.api.inference import LONG_EVIDENCE, Inference, Parse
from gateway.api.render import ChatFormat, ChoiceBuffer, collect
from gateway.api.responses.body import parse
from gateway.api.responses.events import ResponseEvents, event
from gateway.api.responses.kept import Stores, complete, keep, may_keep
from gateway.api.responses.object import Ending, ended, whole_output
from gateway.api.sse import EventStream
from gateway.errors import GatewayError
from gateway.flow.answer import Answer
from gateway.flow.boundary import BOUNDARY
from gateway.flow.pipeline import Pipeline
from gateway.flow.values import ChoiceEnd

PATH = "/v1/responses"


class CreateResponse(Inference):
    def __init__(self, pipeline: Pipeline, reader: BodyReader, stores: Stores, parse_body: Parse = parse) -> None:
        super().__init__(pipeline, reader, parse_body, ChatFormat())
        self._stores = stores
        self.complete = partial(complete, stores)
        self._open: dict[str, ResponseEvents] = {}
        """Streams by request, for the number of their last event."""

    def broken_off(self, error: GatewayError, request_id: str) -> bytes:  # type: ignore[override]
        """The last event of a stream that the gateway itself ends."""
        told = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        events = self._open.get(request_id)
        return event({**told, "sequence_number": 0 if events is None else events.number})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._open.pop(str(scope["state"]["context"].request_id), None)

    async def _whole(self, answer: Answer, send: Send) -> None:
        choice, end = ChoiceBuffer(), None
        async for chunk in answer:
            collect([choice], chunk)
            if isinstance(chunk, ChoiceEnd):
                end = chunk
        ending = Ending.of(end)
        long = choice.evidence > LONG_EVIDENCE
        render = partial(whole_output, answer.reserved, choice, ending)
        output = await asyncio.to_thread(render) if long else render()
        keeps = may_keep(self._stores, answer.reserved)
        response = ended(answer.reserved, answer.bill, output, ending, store=keeps, now=int(time.time()))
        await keep(self._stores, answer.reserved, response)
        body = await asyncio.to_thread(orjson.dumps, response) if long else orjson.dumps(response)
        await respond(send, body, answer_headers(answer.reserved, answer.bill))

    async def _stream(self, answer: Answer, send: Send) -> None:
        reserved = answer.reserved
        keeps = may_keep(self._stores, reserved)
        events = self._open[str(reserved.request_id)] = ResponseEvents(reserved, store=keeps)
        async with EventStream(send, answer_headers(reserved, None)) as stream:
            try:
                with BOUNDARY:
                    await stream.write(events.begin())
                    async for chunk in answer:
                        if data := events.take(chunk):
                            await stream.write(data)
            except GatewayError as error:
                await stream.end(events.fail(error, answer.bill))
                return
            long = events.evidence > LONG_EVIDENCE
            await stream.write(await asyncio.to_thread(events.last_item) if long else events.last_item())
            now = int(time.time())
            response = ended(reserved, answer.bill, events.output, events.ending, store=keeps, now=now)
            await keep(self._stores, reserved, response)
            end = partial(events.end, response)
            await stream.end(await asyncio.to_thread(end) if long else end())


def endpoint(pipeline: Pipeline, reader: BodyReader, stores: Stores) -> Inference:
    return CreateResponse(pipeline, reader, stores)
