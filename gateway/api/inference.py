"""The ASGI endpoint of every route that runs a model: body in, answer out, streamed or whole.

One class for all of them, so that authorization, limits and audit cannot differ between routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import orjson
from starlette.types import Receive, Scope, Send

from gateway.api.early_stream import EarlyStream
from gateway.api.headers import answer_headers
from gateway.api.http.body import BodyReader, ClientGone
from gateway.api.http.credentials import read_credential
from gateway.api.http.dialects import dialect_in, openai_error
from gateway.api.http.disconnect_watcher import DisconnectWatcher
from gateway.api.http.refusing import respond
from gateway.api.render import (
    ChoiceBuffer,
    ResponseFormat,
    collect,
    envelope,
    extension,
    matched,
    usage_object,
    whole_answer,
)
from gateway.api.sse import PING, EventStream, frame
from gateway.api.text_offsets import TextOffsets
from gateway.errors import GatewayError, InvalidRequest
from gateway.flow.answer import Answer
from gateway.flow.boundary import BOUNDARY
from gateway.flow.context import RequestContext
from gateway.flow.incoming import Complete, IncomingRequest
from gateway.flow.pipeline import Pipeline
from gateway.flow.stages import Reserved
from gateway.flow.values import ChoiceEnd, Chunk, Delta, ModelRequest

Parse = Callable[[object], ModelRequest]
LONG_EVIDENCE = 1024
"""Tokens whose log-probabilities are rendered on the event loop."""


class Inference:
    """`parse` turns JSON into a request; `answer_format` turns chunks into the route's objects."""

    ping = PING
    """What a stream says while there is nothing to say."""
    complete: Complete | None = None

    def __init__(self, pipeline: Pipeline, reader: BodyReader, parse: Parse, answer_format: ResponseFormat) -> None:
        self._pipeline = pipeline
        self._reader = reader
        self._parse = parse
        self._answer_format = answer_format

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context: RequestContext = scope["state"]["context"]
        sent = EarlyStream(send, dialect_in(scope), self.broken_off, self.ping)
        disconnect = DisconnectWatcher(receive)
        incoming = IncomingRequest(
            context=context,
            credential=partial(read_credential, scope["headers"]),
            receive=partial(self._read, scope, receive, disconnect),
            gone=disconnect.gone,
            under_way=partial(_expect, sent),
            complete=self.complete,
            caller=scope["state"].get("caller"),
        )
        try:
            with BOUNDARY:
                async with await self._pipeline.answer(incoming) as answer:
                    if answer.reserved.request.stream:
                        await self._stream(answer, sent)
                    else:
                        await self._whole(answer, sent)
        except GatewayError as error:
            # Rendered here: the front door calls this endpoint without the framework's layers in between.
            await sent.refuse(error, str(context.request_id))
        except asyncio.CancelledError:
            if not disconnect.gone():
                await sent.cut_short(str(context.request_id))
                raise
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()  # nobody is left to answer; the record is written
        finally:
            sent.close()
            disconnect.stop()

    @staticmethod
    def broken_off(error: GatewayError, request_id: str) -> bytes:
        """The last event of a stream that does not reach its end."""
        return frame(openai_error(error, request_id))

    async def _read(self, scope: Scope, receive: Receive, disconnect: DisconnectWatcher) -> ModelRequest:
        if any(name == b"last-event-id" for name, _ in scope["headers"]):
            raise InvalidRequest(
                "`Last-Event-ID` asks to resume a stream, and answers are not kept for that.",
                code="unsupported_header",
                param="last-event-id",
                hint="send the request again without the header",
                headers={"connection": "close"},
            )
        try:
            raw = await self._reader.read(scope["headers"], receive)
        except ClientGone:
            disconnect.leave()
            raise asyncio.CancelledError from None
        disconnect.start()
        return await self._reader.parsed(raw, self._parse)

    async def _whole(self, answer: Answer, send: Send) -> None:
        request = answer.reserved.request
        choices = [ChoiceBuffer() for _ in range(request.choices)]
        async for chunk in answer:
            collect(choices, chunk)
        render = partial(_rendered, self._answer_format, answer, choices)
        long = sum(parts.evidence for parts in choices) > LONG_EVIDENCE
        body = await asyncio.to_thread(render) if long else render()
        await respond(send, body, answer_headers(answer.reserved, answer.bill))

    async def _stream(self, answer: Answer, send: Send) -> None:
        request = answer.reserved.request
        head = envelope(self._answer_format, answer.reserved, streaming=True)
        if request.include_usage:
            head["usage"] = None
        opened: dict[int, TextOffsets] = {}
        async with EventStream(send, answer_headers(answer.reserved, None)) as events:
            try:
                with BOUNDARY:
                    async for chunk in answer:
                        if data := self._frames(answer, head, opened, chunk):
                            await events.write(data)
            except GatewayError as error:
                await events.end(self.broken_off(error, str(answer.reserved.request_id)))
                return
            tail = b""
            if request.include_usage:
                usage = {"choices": [], "usage": usage_object(answer.reserved, answer.bill.usage)}
                esclusa = extension(answer.reserved, answer.bill, answer.stop_cause)
                tail = frame({**head, **usage, "x_esclusa": esclusa})
            await events.finish(tail)

    def _frames(self, answer: Answer, head: dict[str, object], opened: dict[int, TextOffsets], chunk: Chunk) -> bytes:
        """The bytes of one chunk: its choice's opening when it is the first, then its delta."""
        if isinstance(chunk, ChoiceEnd):
            delta, finish_reason, stop_cause = chunk.last, chunk.finish_reason, chunk.stop_cause
        elif isinstance(chunk, Delta):
            delta, finish_reason, stop_cause = chunk, None, None
        else:
            return b""
        data, index = b"", delta.index
        if index not in opened:
            opened[index] = TextOffsets()
            opening = self._answer_format.opening(index)
            if opening is not None:
                data = frame({**head, "choices": [opening]})
        if delta.is_empty and not delta.logprobs and finish_reason is None:
            return data
        choice = self._answer_format.delta(delta, finish_reason, opened[index])
        if isinstance(chunk, ChoiceEnd):
            choice |= matched(chunk.stop_reason)
        body = {**head, "choices": [choice]}
        if answer.reserved.request.continuous_usage:
            body["usage"] = usage_object(answer.reserved, answer.used_so_far())
        if stop_cause is not None:
            body["x_esclusa"] = extension(answer.reserved, answer.bill, stop_cause)
        return data + frame(body)


def _expect(sent: EarlyStream, reserved: Reserved) -> None:
    if reserved.request.stream:
        sent.expect(answer_headers(reserved, None))


def _rendered(answer_format: ResponseFormat, answer: Answer, choices: list[ChoiceBuffer]) -> bytes:
    body = orjson.dumps(whole_answer(answer_format, answer.reserved, answer.bill, choices))
    choices.clear()  # to free what is long takes its time too
    return body
