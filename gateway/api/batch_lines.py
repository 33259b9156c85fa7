"""A line of a batch goes through the very route that it is for, in this process: one pipeline, one form of answers.

The route gets a request of its own, with its own id on the audit record, as if it came from where the batch was made.
Its label there is `<batch>/<line>`: whoever looks for a batch finds every attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Scope

from gateway.api.http.body import BodyReader, parse_json
from gateway.api.http.dialects import openai_error
from gateway.batches.values import LeasedLine, LineAnswer
from gateway.errors import GatewayError
from gateway.flow.context import Client, Clock, IdSource, RequestContext
from gateway.flow.values import Principal

Renew = Callable[[Principal], Awaitable[Principal]]
"""The caller as it is now. Raises `Unauthenticated` or `Unavailable`."""


class LineRunner:
    """Implements `batches.worker.RunLine` over the endpoints of the API."""

    def __init__(
        self,
        endpoints: Mapping[str, ASGIApp],
        reader: BodyReader,
        renew: Renew,
        clock: Clock,
        ids: IdSource,
        *,
        timeout_s: float,
    ) -> None:
        self._endpoints, self._reader, self._renew = endpoints, reader, renew
        self._clock, self._ids, self._timeout_s = clock, ids, timeout_s

    async def __call__(self, line: LeasedLine, raw: bytes) -> LineAnswer:
        context = self._context(line)
        try:
            body = orjson.dumps(await self._reader.parsed(raw, _body_of))
        except GatewayError as error:  # the file was judged before, so this is its end: changed bounds
            request_id = str(context.request_id)
            return LineAnswer(error.status, request_id, orjson.dumps(openai_error(error, request_id)), code=error.code)
        exchange = _Exchange(body)
        scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": line.batch.endpoint,
            "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))],
            "state": {"context": context, "caller": partial(self._renew, line.batch.principal)},
        }
        await self._endpoints[line.batch.endpoint](scope, exchange.receive, exchange.send)
        return exchange.answer(str(context.request_id))

    def _context(self, line: LeasedLine) -> RequestContext:
        started, origin = self._clock.monotonic_s(), line.batch.origin
        return RequestContext(
            request_id=self._ids.uuid7(),
            received_at=self._clock.now(),
            started_s=started,
            route=line.batch.endpoint,
            client=Client(
                ip=origin.ip, user_agent=origin.user_agent, client_request_id=f"{line.batch.id}/{line.number}"
            ),
            deadline_s=started + self._timeout_s,
            data_class=origin.data_class,
            purpose=origin.purpose,
            background=True,
        )


class _Exchange:
    """The two ends of an ASGI call whose body and answer are in memory."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._status, self._headers = 500, dict[str, str]()
        self._parts: list[bytes] = []

    async def receive(self) -> Message:
        if self._body is None:
            await asyncio.Event().wait()  # nobody hangs up: the watcher of disconnects waits until it is stopped
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]
            }
        else:
            self._parts.append(message.get("body", b""))

    def answer(self, request_id: str) -> LineAnswer:
        body = b"".join(self._parts)
        code = None if self._status == 200 else _code_of(body)
        return LineAnswer(self._status, request_id, body, self._headers, code)


def _body_of(value: Any) -> Any:
    return value["body"]


def _code_of(body: bytes) -> str | None:
    try:
        code = orjson.loads(body)["error"]["code"]
    except (ValueError, KeyError, TypeError):
        return None
    return code if isinstance(code, str) else None


def read_line(raw: bytes) -> Any:
    """A line of an input file as strict JSON, as every body is read. Raises `InvalidRequest`."""
    return parse_json(raw)
