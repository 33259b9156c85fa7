"""Routes, middleware order and the server's life; no logic. `serve` runs it, `create_app` is what tests call."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import Awaitable, Callable
from functools import partial

import uvicorn
from fastapi import APIRouter, Depends, FastAPI
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api import chat, completions, embeddings, health, models
from gateway.api.body import BodyReader
from gateway.api.errors import install_handlers
from gateway.api.lobby import BootProgress, Lobby
from gateway.api.middleware import Front
from gateway.api.openapi import Document, describe
from gateway.api.protocol import guarded
from gateway.flow.context import SystemIds
from gateway.settings import HttpSettings, Settings
from gateway.wiring import Services, open_services

Prepare = Callable[[BootProgress], Awaitable[Settings]]
Ready = Callable[[Services, str], Awaitable[None]]


class Gateway(FastAPI):
    """FastAPI with our front door around it, so that nothing runs before a request has its context and its limits."""

    front: Front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.front(scope, receive, send)

    async def routed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The framework's own way: middleware, router, handlers."""
        await super().__call__(scope, receive, send)


def create_app(services: Services) -> Gateway:
    """Every route carries its own authentication; only the three probes are public."""
    settings = services.settings.http
    app = Gateway(
        title="Esclusa",
        version=services.version,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    install_handlers(app)
    reader = BodyReader(max_bytes=settings.max_body_bytes, timeout_s=settings.body_timeout_s)
    inference: dict[str, ASGIApp] = {
        route.PATH: route.endpoint(services.pipeline, reader) for route in (chat, completions, embeddings)
    }
    app.front = Front(
        app.routed,
        clock=services.clock,
        ids=services.ids,
        in_flight=services.in_flight,
        max_in_flight=settings.max_concurrent_requests,
        max_header_bytes=settings.max_header_bytes,
        request_timeout_s=settings.request_timeout_s,
        allowed_hosts=settings.allowed_hosts,
        trusted_proxies=settings.trusted_proxies,
        direct=inference,
    )
    for path, endpoint in inference.items():
        app.router.routes.append(Route(path, endpoint, methods=["POST"]))
    app.include_router(models.routes(services.guard.identify("models.list"), services.authorizer))
    app.include_router(health.routes(services.readiness))
    for router in services.admin_routers:
        app.include_router(router)
    app.include_router(_description(app, services))
    return app


def _description(app: FastAPI, services: Services) -> APIRouter:
    """`/openapi.json`: for token holders, because an API's shape is a map for strangers."""
    router = APIRouter()
    known_caller = Depends(services.guard.identify("api.describe"))
    document = Document(partial(describe, app))

    @router.get("/openapi.json", include_in_schema=False, dependencies=[known_caller])
    async def openapi() -> Response:
        return Response(await document.text(), media_type="application/json")

    return router


class GatewayServer(uvicorn.Server):
    """uvicorn without its signal handling: `serve` decides when to drain and when to stop hard."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.announces = False
        """Told by SIGTERM: whoever sends requests here learns it from `/readyz` before the port closes."""
        self._hurried = asyncio.Event()

    def hurry(self) -> None:
        """The second signal: neither waits for others nor for running requests."""
        self.force_exit = True
        self._hurried.set()

    async def announce(self, delay_s: float) -> None:
        """Go on serving while load balancers notice."""
        if self.announces and not self.should_exit:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._hurried.wait()

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        return contextlib.nullcontext()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Stopping is what cancels requests from here on: uvicorn would log each as a failure of the application.
        logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)
        await super().shutdown(sockets)

    async def end_requests(self, timeout_s: float = 5.0) -> None:
        """Cancel what still runs after a hard stop; each request is settled and recorded on its way out."""
        tasks = tuple(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        logging.getLogger("uvicorn.error").removeFilter(_is_no_cancellation)


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


def make_server(app: ASGIApp, settings: HttpSettings) -> GatewayServer:
    protocol = guarded(
        header_timeout_s=settings.header_timeout_s,
        max_header_bytes=settings.max_header_bytes,
        max_connections=settings.max_connections,
        ids=SystemIds(),
    )
    return GatewayServer(
        uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=int(settings.shutdown_grace_s),
            backlog=2048,
        )
    )


async def serve(
    settings: Settings,
    *,
    prepare: Prepare | None = None,
    on_ready: Ready | None = None,
    progress: BootProgress | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Run until SIGINT, SIGTERM or `stop`: the port answers at once, then `prepare` and the services come up behind it.

    `prepare(progress)` may start private stores and returns the settings to use. `on_ready(services, url)` is called
    once when every part can serve. The first signal drains for `shutdown_grace_s`, after SIGTERM with `drain_delay_s`
    of notice at `/readyz`; the second stops at once.
    Raises `ConfigError` for what cannot be started, `OSError` when the port is taken.
    """
    progress = progress if progress is not None else BootProgress()
    stop = stop if stop is not None else asyncio.Event()
    listener = _bind(settings.http)
    host, port = listener.getsockname()[:2]
    url = f"http://{'[' + host + ']' if ':' in host else host}:{port}"
    lobby = Lobby(progress, SystemIds())
    server = make_server(lobby, settings.http)
    running = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    restore = _handle_signals(stop, server)
    boot = asyncio.create_task(
        _boot(settings, prepare, on_ready, progress, lobby, server, running, stop, url), name="boot"
    )
    try:
        await asyncio.wait({boot, running}, return_when=asyncio.FIRST_COMPLETED)
        if not boot.done() and not stop.is_set():
            boot.cancel()  # the listener died by itself
        await boot
    except asyncio.CancelledError:
        boot.cancel()
        await asyncio.gather(boot, return_exceptions=True)
        raise
    finally:
        server.should_exit = True
        await asyncio.gather(running, return_exceptions=True)
        restore()


async def _boot(
    settings: Settings,
    prepare: Prepare | None,
    on_ready: Ready | None,
    progress: BootProgress,
    lobby: Lobby,
    server: GatewayServer,
    running: asyncio.Task[None],
    stop: asyncio.Event,
    url: str,
) -> None:
    stopping = asyncio.create_task(stop.wait())
    try:
        preparing = asyncio.ensure_future(prepare(progress) if prepare is not None else _given(settings))
        await asyncio.wait({preparing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not preparing.done():
            preparing.cancel()
            await asyncio.gather(preparing, return_exceptions=True)
            return
        async with open_services(preparing.result(), progress) as services:
            lobby.open(create_app(services))
            metrics = await services.serve_metrics(make_server)
            loaded = asyncio.create_task(services.wait_loaded())
            await asyncio.wait({loaded, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if loaded.done() and not stop.is_set():
                await loaded
                settle_memory()
                if on_ready is not None:
                    await on_ready(services, url)
                await stopping
                lobby.leave()
                await server.announce(settings.http.drain_delay_s)
            loaded.cancel()
            # Drain while the services still stand: requests in flight end, are settled and recorded.
            server.should_exit = True
            await services.leave()
            await asyncio.wait({running})
            await server.end_requests()
            await services.drain()
            if metrics is not None:
                await metrics()
    finally:
        stopping.cancel()


def settle_memory() -> None:
    """What was built so far lives as long as the process: without it, a full collection costs tens of milliseconds."""
    gc.collect()
    gc.freeze()


async def _given(settings: Settings) -> Settings:
    return settings


def _bind(settings: HttpSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _handle_signals(stop: asyncio.Event, server: GatewayServer) -> Callable[[], None]:
    """The first signal asks for a drain, the second ends it. Returns what undoes the handlers."""
    loop = asyncio.get_running_loop()

    def received(number: signal.Signals) -> None:
        if stop.is_set():
            server.hurry()
        server.announces = server.announces or number is signal.SIGTERM
        stop.set()

    handled = []
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, received, number)
        except (NotImplementedError, RuntimeError, ValueError):
            continue  # not the main thread: whoever runs us stops us through `stop`
        handled.append(number)

    def restore() -> None:
        for number in handled:
            loop.remove_signal_handler(number)

    return restore
