"""The door that answers from the first moment: alive at once, not ready until the gateway stands behind it.

Owns what a caller sees while stores start, schemas migrate and models are fetched. Knows nothing of what is built.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.flow.context import IdSource

RETRY_AFTER_S = 5


@dataclass(slots=True)
class BootProgress:
    """What the start is doing. Written by the boot, read by `/readyz`; `percent` is 0..100 within the stage."""

    stage: str = "starting"
    percent: float = 0.0

    def update(self, stage: str, percent: float) -> None:
        self.stage, self.percent = stage, round(percent, 1)


class Lobby:
    """ASGI application in front of the gateway until `open` hands over; afterwards it only passes on."""

    def __init__(self, progress: BootProgress, ids: IdSource) -> None:
        self.progress, self._ids = progress, ids
        self._gateway: ASGIApp | None = None

    def open(self, gateway: ASGIApp) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._gateway is not None:
            await self._gateway(scope, receive, send)
        elif scope["type"] == "lifespan":
            await _acknowledge_lifespan(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope["path"], send)

    async def _answer(self, path: str, send: Send) -> None:
        request_id = str(self._ids.uuid7())
        if path == "/livez":
            await _json(send, request_id, 200, {"status": "alive"})
        elif path in ("/readyz", "/health"):
            loading = {"status": "loading", "stage": self.progress.stage, "percent": self.progress.percent}
            await _json(send, request_id, 503, loading)
        else:
            await _json(
                send,
                request_id,
                503,
                {
                    "error": {
                        "message": f"The gateway is starting: {self.progress.stage} ({self.progress.percent:.0f} %).",
                        "type": "server_error",
                        "param": None,
                        "code": "gateway_starting",
                        "hint": "wait for 200 at /readyz",
                        "request_id": request_id,
                    }
                },
            )


async def _json(send: Send, request_id: str, status: int, body: dict[str, object]) -> None:
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
