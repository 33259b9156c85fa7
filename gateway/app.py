"""Routes, middleware order, start and end of serving; no logic. `serve` runs it, `create_app` is what tests call."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Awaitable, Callable
from functools import partial

from fastapi import APIRouter, Depends, FastAPI
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api import chat, completions, docs_page, embeddings, health, models, moderations, ranking, tokens
from gateway.api.anthropic import count_tokens, messages
from gateway.api.anthropic.dialect import dialect_of
from gateway.api.http.body import BodyReader
from gateway.api.http.cors import CrossOrigin
from gateway.api.http.edge_middleware import EdgeMiddleware
from gateway.api.http.errors import install_handlers
from gateway.api.http.startup_app import BootProgress, StartupApp
from gateway.api.openapi import Document, describe
from gateway.api.responses import conversations, create, input_tokens, stored
from gateway.descriptors import DescriptorPlan
from gateway.errors import ConfigError
from gateway.server import GatewayServer, fit_descriptors, handle_signals, listen, make_server
from gateway.settings import Settings
from gateway.wiring.running_services import Services
from gateway.wiring.services import open_services, startup_server

Prepare = Callable[[BootProgress], Awaitable[Settings]]
Ready = Callable[[Services, str], Awaitable[None]]


class Gateway(FastAPI):
    """FastAPI with our front door around it, so that nothing runs before a request has its context and its limits."""

    front: ASGIApp

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
    running = (chat, completions, embeddings, moderations, messages, count_tokens)
    inference: dict[str, ASGIApp] = {route.PATH: route.endpoint(services.pipeline, reader) for route in running}
    inference[input_tokens.PATH] = input_tokens.endpoint(services.pipeline, reader, services.stores)
    inference[create.PATH] = create.endpoint(services.pipeline, reader, services.stores)
    inference |= ranking.endpoints(services.pipeline, reader) | tokens.endpoints(services.pipeline, reader)
    front = EdgeMiddleware(
        app.routed,
        clock=services.clock,
        ids=services.ids,
        in_flight=services.in_flight,
        max_in_flight=services.descriptors.requests,
        operator_slots=settings.operator_slots,
        count=services.count,
        max_header_bytes=settings.max_header_bytes,
        request_timeout_s=settings.request_timeout_s,
        allowed_hosts=settings.allowed_hosts,
        trusted_proxies=settings.trusted_proxies,
        direct=inference,
        dialect_of=dialect_of,
    )
    app.front = CrossOrigin(front, settings.cors_origins) if settings.cors_origins else front
    for path, endpoint in inference.items():
        app.router.routes.append(Route(path, endpoint, methods=["POST"]))
    app.include_router(models.routes(services.guard.identify("models.list"), services.authorizer))
    identify, audit = services.guard.identify, services.audit
    app.include_router(stored.routes(identify, services.stores.responses, audit))
    app.include_router(
        conversations.routes(identify, services.stores.conversations, audit, services.authorizer, reader)
    )
    app.include_router(health.routes(services.readiness))
    for router in (*services.admin_routers, *(services.batches.routers if services.batches is not None else ())):
        app.include_router(router)
    app.include_router(_description(app, services))
    if settings.docs:
        app.include_router(docs_page.routes(app.title, "/openapi.json"))
    return app


def _description(app: FastAPI, services: Services) -> APIRouter:
    """`/openapi.json`: for token holders, because an API's shape is a map for strangers; with `/docs` for everyone."""
    router = APIRouter()
    known_caller = [] if services.settings.http.docs else [Depends(services.guard.identify("api.describe"))]
    document = Document(partial(describe, app))

    @router.get("/openapi.json", include_in_schema=False, dependencies=known_caller)
    async def openapi() -> Response:
        return Response(await document.text(), media_type="application/json")

    return router


async def serve(
    settings: Settings,
    *,
    prepare: Prepare | None = None,
    on_ready: Ready | None = None,
    progress: BootProgress | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Run until a signal or `stop`: the port answers at once, then `prepare` and the services come up behind it.

    `prepare(progress)` may start private stores and returns the settings to use. `on_ready(services, url)` is called
    once when every part can serve. The first signal drains for `shutdown_grace_s`, after SIGTERM, SIGHUP and
    SIGQUIT with `drain_delay_s` of notice at `/readyz`; the second stops at once.
    Raises `ConfigError` for what cannot be started, a port that is taken included.
    """
    progress = progress if progress is not None else BootProgress()
    stop = stop if stop is not None else asyncio.Event()
    plan = fit_descriptors(settings)
    http = settings.http.model_copy(
        update={"max_connections": plan.connections, "max_concurrent_requests": plan.requests}
    )
    listener = listen(http.host, http.port)
    metrics = None
    try:
        metrics = None if http.metrics_port is None else listen(http.metrics_host, http.metrics_port)
    except ConfigError:
        listener.close()
        raise
    host, port = listener.getsockname()[:2]
    url = f"http://{'[' + host + ']' if ':' in host else host}:{port}"
    startup_app, server = startup_server(progress, http)
    running = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    restore = handle_signals(stop, server)
    boot = asyncio.create_task(
        _boot(settings, prepare, on_ready, plan, progress, startup_app, server, running, stop, url, metrics),
        name="boot",
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
        if metrics is not None:
            metrics.close()
        restore()


async def _boot(
    settings: Settings,
    prepare: Prepare | None,
    on_ready: Ready | None,
    plan: DescriptorPlan,
    progress: BootProgress,
    startup_app: StartupApp,
    server: GatewayServer,
    running: asyncio.Task[None],
    stop: asyncio.Event,
    url: str,
    metrics_listener: socket.socket | None,
) -> None:
    stopping = asyncio.create_task(stop.wait())
    try:
        preparing = asyncio.ensure_future(prepare(progress) if prepare is not None else _given(settings))
        await asyncio.wait({preparing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not preparing.done():
            preparing.cancel()
            await asyncio.gather(preparing, return_exceptions=True)
            return
        async with open_services(preparing.result(), progress, plan) as services:
            services.expose("connections", server.connections.state)
            startup_app.open(create_app(services))
            startup_app.refusals.connect(services.count)
            metrics = None if metrics_listener is None else services.serve_metrics(make_server, metrics_listener)
            loaded = asyncio.create_task(services.wait_loaded())
            await asyncio.wait({loaded, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if loaded.done() and not stop.is_set():
                await loaded
                settle_memory()
                if on_ready is not None:
                    await on_ready(services, url)
                await stopping
                startup_app.leave()
                await server.announce_drain(settings.http.drain_delay_s)
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
    """Freeze the objects built so far, which live as long as the process: a collection costs tens of milliseconds."""
    gc.collect()
    gc.freeze()


async def _given(settings: Settings) -> Settings:
    return settings
