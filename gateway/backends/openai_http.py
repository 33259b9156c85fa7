"""Any OpenAI-compatible server as a governed backend.

The upstream's key comes from settings; nothing of the caller's credentials is ever forwarded. A request is sent again
only when no byte of an answer had arrived. An upstream that dies is an error, never a clean end.
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import AsyncIterator, Mapping

from gateway.backends.http_wire import HttpPool, Reply, WireError
from gateway.backends.openai_deltas import ChoiceCalls
from gateway.backends.openai_wire import (
    PATHS,
    embedding_body,
    refusal,
    request_body,
    require_known_echo,
    stream_chunks,
    vectors,
    whole_chunks,
)
from gateway.descriptors import no_descriptor
from gateway.errors import GatewayError, Unavailable, UpstreamFailed
from gateway.flow.values import (
    Chunk,
    EmbeddingRequest,
    GeneratingRequest,
    ModelCard,
    ModelRequest,
    Prepared,
    SchedulingHints,
    Usage,
)
from gateway.settings import UpstreamSettings

MAX_EVENT = 4 * 1024 * 1024


class OpenAIBackend:
    """Implements `flow.ports.Backend` for one upstream. Build it inside a running loop; `aclose` at the end."""

    def __init__(self, name: str, settings: UpstreamSettings, *, tls: ssl.SSLContext | None = None) -> None:
        self.name = name
        self._retries = settings.retries
        self._pool = HttpPool(
            settings.base_url,
            connect_timeout_s=settings.connect_timeout_s,
            read_timeout_s=settings.read_timeout_s,
            max_connections=settings.max_connections,
            tls=tls,
        )
        key = settings.api_key.get_secret_value() if settings.api_key is not None else None
        authorization = f"authorization: Bearer {key}\r\n" if key else ""
        self._heads = {
            action: (
                f"POST {self._pool.prefix}{path} HTTP/1.1\r\nhost: {self._pool.authority}\r\n{authorization}"
                "content-type: application/json\r\naccept: application/json, text/event-stream\r\n"
                "user-agent: esclusa\r\n"
            ).encode("ascii")
            for action, path in PATHS.items()
        }
        self._failing = False

    async def prepare(self, request: ModelRequest, card: ModelCard) -> Prepared:
        del card  # only the upstream can count for its model
        require_known_echo(request)
        return Prepared()

    def generate(
        self,
        request: GeneratingRequest,
        card: ModelCard,
        *,
        prepared: Prepared,
        request_id: str,
        max_output_tokens: int,
        tenant_salt: bytes,
        scheduling: SchedulingHints,
    ) -> AsyncIterator[Chunk]:
        del prepared, tenant_salt, scheduling  # an upstream counts, queues and caches by itself
        message = self._message(request, request_body(request, card, max_output_tokens), request_id)
        return UpstreamAnswer(self, message, request.action, choices=request.choices, stream=request.stream)

    async def embed(
        self,
        request: EmbeddingRequest,
        card: ModelCard,
        *,
        prepared: Prepared,
        scheduling: SchedulingHints,
    ) -> tuple[tuple[tuple[float, ...], ...], Usage]:
        del prepared, scheduling  # as above
        reply = await self.opened(self.send(self._message(request, embedding_body(request, card), "")))
        try:
            return vectors(await reply.read(), inputs=len(request.inputs))
        except WireError as error:
            raise self.failed(error) from None
        finally:
            reply.close()

    def status(self) -> Mapping[str, object]:
        return {"state": "failed" if self._failing else "ready", "stage": "upstream", "percent": 100.0}

    async def aclose(self) -> None:
        await self._pool.aclose()

    def send(self, message: bytes) -> Reply:
        return self._pool.send(message)

    async def opened(self, reply: Reply) -> Reply:
        """The reply with its status checked; sent again while nothing had arrived and tries are left."""
        tries = self._retries
        while True:
            try:
                status = await reply.head()
                break
            except WireError as error:
                if not error.clean or error.timeout or error.shortage or tries <= 0:
                    raise self.failed(error) from None
                # An idle connection that the other side had just closed costs no try.
                tries -= 0 if reply.reused else 1
                reply = self.send(reply.request)
        if status == 200:
            self._failing = False
            return reply
        try:
            raw = await reply.read()
        except WireError:
            raw = b""
        raise refusal(status, reply.headers, raw)

    def failed(self, error: WireError) -> GatewayError:
        if error.shortage:
            return no_descriptor()
        self._failing = True
        if error.clean:
            return Unavailable("The model's server does not answer.", code="upstream_unavailable", detail=str(error))
        return UpstreamFailed("The model's server broke off its answer.", detail=str(error))

    def _message(self, request: ModelRequest, body: bytes, request_id: str) -> bytes:
        tail = f"x-request-id: {request_id}\r\ncontent-length: {len(body)}\r\n\r\n".encode("ascii")
        return b"".join((self._heads[request.action], tail, body))


class UpstreamAnswer:
    """One answer of an upstream as chunks. The request is on the wire once this exists."""

    def __init__(self, backend: OpenAIBackend, message: bytes, action: str, *, choices: int, stream: bool) -> None:
        self._backend = backend
        self._action = action
        self._choices = choices
        self._stream = stream
        self._reply = backend.send(message)
        self._ready: deque[Chunk] = deque()
        self._rest = b""
        self._calls = dict[int, ChoiceCalls]()
        self._opened = False
        self._ended = False

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        while not self._ready:
            if self._ended:
                raise StopAsyncIteration
            await self._advance()
        return self._ready.popleft()

    async def aclose(self) -> None:
        self._ended = True
        self._ready.clear()
        self._reply.close()

    async def _advance(self) -> None:
        if not self._opened:
            self._reply = await self._backend.opened(self._reply)
            self._opened = True
        try:
            if self._stream:
                self._events(await self._reply.chunk())
            else:
                self._ready.extend(whole_chunks(await self._reply.read(), self._action, choices=self._choices))
                self._ended = True
        except WireError as error:
            raise self._backend.failed(error) from None

    def _events(self, data: bytes) -> None:
        if not data:
            # No `[DONE]`: whatever the connection says, this answer is not whole.
            raise UpstreamFailed("The model's server broke off its answer.")
        buffer = self._rest + data if self._rest else data
        if b"\r" in buffer:
            buffer = buffer.replace(b"\r\n", b"\n")
        *events, self._rest = buffer.split(b"\n\n")
        if len(self._rest) > MAX_EVENT:
            raise UpstreamFailed("The model's server sent an event without end.")
        for event in events:
            payload = b"".join([line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")])
            if payload == b"[DONE]":
                self._ended = True
                self._reply.leave()
                return
            if payload:
                self._ready.extend(stream_chunks(payload, self._action, choices=self._choices, calls=self._calls))
