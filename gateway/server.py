"""The listening socket, the HTTP server and its signals: when to announce, drain and stop hard. Knows no routes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from gateway.api.http.acceptor import Acceptor
from gateway.api.http.connection_limits import ConnectionLimits
from gateway.api.http.connections import Connections
from gateway.api.http.protocol import guarded
from gateway.api.http.proxies import TrustedProxies
from gateway.api.http.refusals import Refusals
from gateway.descriptors import DescriptorPlan, plan_descriptors, raise_limit
from gateway.errors import ConfigError
from gateway.flow.context import IdSource
from gateway.http_settings import HttpSettings
from gateway.settings import Settings

_log = logging.getLogger("esclusa.server")
ANNOUNCING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Sent by service managers and closing terminals: `/readyz` says so before the port closes. Ctrl-C waits for nobody."""
REFUSED_AT_ONCE = 32
"""Connections beyond the limit that are held to tell them so; the next ones wait to be accepted."""
_HINTS = {
    errno.EADDRINUSE: "another process has the port; choose one with --port and --metrics-port",
    errno.EACCES: "ports below 1024 need a privilege; choose a higher one with --port",
    errno.EADDRNOTAVAIL: "the address is none of this machine's; see `http.host` and `http.metrics_host`",
}


def listen(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet. Raises `ConfigError` with the reason."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener: socket.socket | None = None
    try:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.setblocking(False)
    except OSError as error:
        if listener is not None:
            listener.close()
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror or error)
        hint = _HINTS.get(error.errno or 0, "see `http.host`, `http.port`, `http.metrics_host` and `http.metrics_port`")
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}", hint=hint) from error
    return listener


class GatewayServer(uvicorn.Server):
    """uvicorn without its signal handling: `serve` decides when to drain and when to stop hard."""

    def __init__(self, config: uvicorn.Config, connections: Connections) -> None:
        super().__init__(config)
        self.connections = connections
        self.announces = False
        """Told by SIGTERM: whoever sends requests here learns it from `/readyz` before the port closes."""
        self._forced = asyncio.Event()

    def force_exit_now(self) -> None:
        """The second signal: neither waits for others nor for running requests."""
        self.force_exit = True
        self._forced.set()

    async def announce_drain(self, delay_s: float) -> None:
        """Go on serving while load balancers notice."""
        if self.announces and not self.should_exit:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._forced.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen with an acceptor of our own, which waits where uvloop's would reset connections."""
        await self.lifespan.startup()
        config, loop = self.config, asyncio.get_running_loop()

        def protocol() -> asyncio.Protocol:
            # uvicorn annotates the class as any `asyncio.Protocol`; these are the arguments it passes itself.
            return config.http_protocol_class(  # type: ignore[call-arg]
                config=config, server_state=self.server_state, app_state=self.lifespan.state, _loop=loop
            )

        most = self.connections.limits.max_connections + REFUSED_AT_ONCE

        def is_full() -> bool:
            return len(self.server_state.connections) >= most and not self.connections.has_room()

        self.servers = []
        for listener in sockets or ():
            acceptor = Acceptor(
                listener,
                protocol,
                backlog=config.backlog,
                is_full=is_full,
            )
            acceptor.start()
            self.servers.append(acceptor)  # type: ignore[arg-type]  # has all of a `Server` that uvicorn calls
        self.started = True

    # uvicorn declares what its decorator makes, a generator's context manager.
    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """None are captured here: `handle_signals` does."""
        return contextlib.nullcontext()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Stopping is what cancels requests from here on: uvicorn would log each as a failure of the application.
        logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)
        await super().shutdown(sockets)

    async def end_requests(self, timeout_s: float = 5.0) -> None:
        """Cancel what still runs after a hard stop; each request is settled, recorded and told on its way out."""
        tasks = tuple(self.server_state.tasks)
        for task in tasks:
            if not task.cancelling():  # a second one would cut off what the first has begun
                task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        logging.getLogger("uvicorn.error").removeFilter(_is_no_cancellation)


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


def plan_for(settings: Settings, limit: int) -> DescriptorPlan:
    most = settings.http.max_connections
    return plan_descriptors(
        limit,
        connections=most,
        # A connection for each operator is left when all others are at work.
        requests=min(settings.http.max_concurrent_requests, max(1, most - settings.http.operator_slots)),
        upstreams=sum(upstream.max_connections for upstream in settings.upstreams.values()),
        database_pool=settings.store.database_pool,
    )


def fit_descriptors(settings: Settings) -> DescriptorPlan:
    """Raise the limit of open files, and say so where the configured admission still does not fit below it."""
    plan = plan_for(settings, raise_limit())
    if plan.lowered:
        _log.warning("admission is lowered to what fits: %s; raise the limit of open files (ulimit -n)", plan)
    return plan


def make_server(app: ASGIApp, settings: HttpSettings, ids: IdSource, refusals: Refusals | None = None) -> GatewayServer:
    protocol = guarded(
        ConnectionLimits(
            header_timeout_s=settings.header_timeout_s,
            # A route that reads its body itself says so first, with a record; this bound holds for every route.
            body_timeout_s=2 * settings.body_timeout_s,
            write_timeout_s=settings.write_timeout_s,
            max_header_bytes=settings.max_header_bytes,
            max_connections=settings.max_connections,
            max_connections_per_address=settings.max_connections_per_address,
            max_unsent_bytes=settings.max_unsent_bytes,
        ),
        ids=ids,
        trusted=TrustedProxies(settings.trusted_proxies).trust,
        refusals=refusals,
    )
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(settings.shutdown_grace_s),
        backlog=2048,
    )
    return GatewayServer(config, protocol.registry)


def handle_signals(stop: asyncio.Event, server: GatewayServer) -> Callable[[], None]:
    """The first signal asks for a drain, the second ends it. Returns what undoes the handlers.

    SIGHUP is never counted: a closing terminal and its shell send one each, systemd one after SIGTERM, and of signals
    that are both pending the system delivers SIGHUP first, as the lowest number.
    """
    loop = asyncio.get_running_loop()
    counted = False

    def received(number: signal.Signals) -> None:
        nonlocal counted
        if number is not signal.SIGHUP:
            if counted:
                server.force_exit_now()
            counted = True
        server.announces = server.announces or number in ANNOUNCING
        stop.set()

    handled = []
    for number in (signal.SIGINT, *ANNOUNCING):
        if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
            continue  # started by nohup, which wants the process to outlive its terminal
        try:
            loop.add_signal_handler(number, received, number)
        except (NotImplementedError, RuntimeError, ValueError):
            # No signals in this loop (Windows), not the main thread, a signal that cannot be caught: loops tell it
            # differently, and whoever runs us stops us through `stop`.
            continue
        handled.append(number)

    def restore() -> None:
        for number in handled:
            loop.remove_signal_handler(number)

    return restore
