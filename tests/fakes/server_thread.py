"""The gateway's HTTP server, real in everything, around a scripted application; on an event loop in a thread."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import uvloop
from starlette.types import Receive, Scope, Send

from gateway.flow.context import SystemIds
from gateway.http_settings import HttpSettings
from gateway.server import GatewayServer, listen, make_server

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}


class Script:
    """`/echo` answers what it was asked, `/early` does not read the body, `/big` is `big_bytes` long,
    `/stream` goes on until the client is gone, `/wait` answers once `release` is set.

    `seen` holds method, path and body of each request, `gone` the paths whose client was gone.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, bytes]] = []
        self.gone: list[str] = []
        self.running = 0
        self.big_bytes = 1 << 20
        self.release = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.running += 1
        try:
            await self._answer(scope, receive, send)
        finally:
            self.running -= 1

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, body = scope["path"], b""
        while path != "/early":
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone.append(path)
                return
            body += message["body"]
            if not message["more_body"]:
                break
        self.seen.append((scope["method"], path, body))
        if path == "/stream":
            await self._stream(receive, send)
            return
        if path == "/wait" and not await self._released(receive):
            self.gone.append(path)
            return
        text = b"x" * self.big_bytes if path == "/big" else json.dumps(_described(scope, body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text})

    async def _released(self, receive: Receive) -> bool:
        hangup = asyncio.ensure_future(receive())
        while not self.release.is_set() and not hangup.done():  # noqa: ASYNC110 - set in another thread
            await asyncio.sleep(0.01)
        hangup.cancel()
        return self.release.is_set()

    async def _stream(self, receive: Receive, send: Send) -> None:
        hangup = asyncio.ensure_future(receive())
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        while not hangup.done():
            await send({"type": "http.response.body", "body": b"tick" * 4096, "more_body": True})
            await asyncio.sleep(0.005)
        self.gone.append("/stream")


def _described(scope: Scope, body: bytes) -> dict[str, Any]:
    return {
        "method": scope["method"],
        "path": scope["path"],
        "query": scope["query_string"].decode(),
        "headers": [[name.decode(), value.decode("latin-1")] for name, value in scope["headers"]],
        "body": body.decode("latin-1"),
    }


class ServerThread:
    """Use as a context manager. `stop` returns when the server has ended."""

    def __init__(self, loop: str = "uvloop", **settings: Any) -> None:
        self.script = Script()
        self._settings = HttpSettings.model_validate({"port": 0, "shutdown_grace_s": 30.0, **settings})
        self._loop_kind = loop
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)
        self._ready = threading.Event()
        self.errors: list[dict[str, Any]] = []
        """What the event loop was told of exceptions that nobody took."""
        self.url = ""
        self.server: GatewayServer

    def __enter__(self) -> ServerThread:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self.script.release.set()
        self.stop()

    def state(self) -> dict[str, Any]:
        return dict(self.server.connections.state())

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive(), "the server did not stop"

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=LOOPS[self._loop_kind]) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.errors.append(context))
        listener = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.server = make_server(self.script, self._settings, SystemIds())
        serving = asyncio.create_task(self.server.serve(sockets=[listener]))
        while not self.server.started:  # noqa: ASYNC110 - uvicorn tells nobody
            await asyncio.sleep(0.005)
        self._ready.set()
        await serving
