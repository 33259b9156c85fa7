"""The services of a running gateway, as the application and the server use them. Builds nothing."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import uvicorn
from fastapi import APIRouter
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from gateway.admin.guard import PermissionGuard
from gateway.api.health import Readiness
from gateway.api.http.admission import InFlight
from gateway.api.http.refusals import Count
from gateway.api.responses.kept import Stores
from gateway.descriptors import DescriptorPlan
from gateway.flow.context import Clock, IdSource
from gateway.flow.operation import EngineOperator
from gateway.flow.pipeline import Pipeline
from gateway.flow.ports import AuditLog, Authenticator, Authorizer, Backend
from gateway.http_settings import HttpSettings
from gateway.settings import Settings
from gateway.telemetry.exposition import metrics_app
from gateway.telemetry.metrics import StateCollector
from gateway.wiring.batches import BatchParts

_log = logging.getLogger("esclusa.wiring")
MakeServer = Callable[[ASGIApp, HttpSettings, IdSource], uvicorn.Server]


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that `create_app` needs; alive inside `open_services`."""

    settings: Settings
    version: str
    clock: Clock
    ids: IdSource
    pipeline: Pipeline
    authenticator: Authenticator
    authorizer: Authorizer
    audit: AuditLog
    guard: PermissionGuard
    stores: Stores
    readiness: Callable[[], Readiness]
    registry: CollectorRegistry
    in_flight: InFlight
    descriptors: DescriptorPlan
    count: Count
    admin_routers: tuple[APIRouter, ...] = ()
    batches: BatchParts | None = None
    loaded: tuple[Callable[[], Awaitable[None]], ...] = ()
    backends: Mapping[str, Backend] = field(default_factory=dict)
    engines: EngineOperator | None = None
    warnings: Callable[[], tuple[str, ...]] = tuple
    """Notices to an operator once the gateway is ready."""

    def expose(self, part: str, state: Callable[[], Mapping[str, object]]) -> None:
        """Add the numbers of a part that is built outside of here to `/metrics`."""
        self.registry.register(StateCollector({part: state}))

    async def leave(self) -> None:
        """Before the last requests end: none of them may wait for an engine that an operator has paused."""
        if self.engines is not None:
            await self.engines.resume_paused()
        if self.batches is not None:
            await self.batches.worker.close()  # what it runs goes back to the other nodes

    async def wait_loaded(self) -> None:
        """Returns when every model can serve, and starts what waits for that. Raises `ConfigError` for one that never
        will."""
        for wait in self.loaded:
            await wait()
        if self.batches is not None:
            self.batches.worker.start()

    async def drain(self) -> None:
        """After the last request: let settlements and records finish."""
        left = await self.pipeline.finalizers.drain(10.0)
        if left:
            _log.error("%d requests could not be concluded in time", left)

    def serve_metrics(self, make_server: MakeServer, listener: socket.socket) -> Callable[[], Awaitable[None]]:
        """Serve `/metrics` on a bound socket; returns what stops it."""
        server = make_server(metrics_app(self.registry), self.settings.http, self.ids)
        task = asyncio.create_task(server.serve(sockets=[listener]), name="metrics")

        async def stop() -> None:
            server.should_exit = True
            await asyncio.gather(task, return_exceptions=True)

        return stop
