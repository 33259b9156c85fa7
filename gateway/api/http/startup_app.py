"""The door that answers from the first moment to the last: alive at once, ready only while the gateway stands behind.

Owns what a caller sees while stores start, schemas migrate and models are fetched, and what probes see while the
gateway is being left. Knows nothing of what is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.api.http.dialects import DialectOf, every_request_openai
from gateway.api.http.refusals import Refusals, Unrecorded
from gateway.errors import Unavailable
from gateway.flow.context import IdSource

RETRY_AFTER_S = 5
READINESS = ("/readyz", "/health")


@dataclass(slots=True)
class BootProgress:
    """Startup progress. Written by the boot, read by `/readyz`; `percent` is 0..100 within the stage."""

    stage: str = "starting"
    percent: float = 0.0

    def update(self, stage: str, percent: float) -> None:
        self.stage, self.percent = stage, round(percent, 1)


class StartupApp:
    """ASGI application in front of the gateway until `open` hands over; afterwards it only passes on.

    From `leave` on the probes of readiness are told so, and everything else is still served.
    """

    def __init__(
        self,
        progress: BootProgress,
        ids: IdSource,
        refusals: Refusals | None = None,
        dialect_of: DialectOf = every_request_openai,
    ) -> None:
        self.progress, self._ids, self._dialect_of = progress, ids, dialect_of
        self.refusals = refusals if refusals is not None else Refusals()
        self._gateway: ASGIApp | None = None
        self._leaving = False

    def open(self, gateway: ASGIApp) -> None:
        self._gateway = gateway

    def leave(self) -> None:
        self._leaving = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._leaving and scope["type"] == "http" and scope["path"] in READINESS:
            await self._not_ready("draining", "draining", 100.0, send)
        elif self._gateway is not None:
            await self._gateway(scope, receive, send)
        elif scope["type"] == "lifespan":
            await _acknowledge_lifespan(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, send)

    async def _answer(self, scope: Scope, send: Send) -> None:
        path, peer = scope["path"], scope.get("client")
        number = self._ids.uuid7()
        request_id = str(number)
        if path == "/livez":
            await _json(send, request_id, 200, {"status": "alive"})
        elif path in READINESS:
            await self._not_ready("loading", self.progress.stage, self.progress.percent, send)
        else:
            self.refusals.count(Unrecorded(number, 503, "gateway_starting", source=peer[0] if peer else None))
            starting = Unavailable(
                f"The gateway is starting: {self.progress.stage} ({self.progress.percent:.0f} %).",
                code="gateway_starting",
                hint="wait for 200 at /readyz",
                retry_after_s=RETRY_AFTER_S,
            )
            await _json(send, request_id, 503, self._dialect_of(scope).error(starting, request_id))

    async def _not_ready(self, status: str, stage: str, percent: float, send: Send) -> None:
        body: dict[str, object] = {"status": status, "stage": stage, "percent": percent, "parts": {}}
        await _json(send, str(self._ids.uuid7()), 503, body)


async def _json(send: Send, request_id: str, status: int, body: Mapping[str, object]) -> None:
    headers = [(b"content-type", b"application/json"), (b"x-request-id", request_id.encode())]
    if status != 200:
        headers.append((b"retry-after", str(RETRY_AFTER_S).encode()))
    start: Message = {"type": "http.response.start", "status": status, "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": orjson.dumps(body)})


async def _acknowledge_lifespan(receive: Receive, send: Send) -> None:
    """The gateway's own start and stop are driven by `serve`, not by the server's lifespan."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
