"""The parts of a command that opens the database itself: connections, readers, audit records of its own.

Its records go through this machine's spool, like a gateway's. Imported by a command when it runs.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from importlib.metadata import version as installed_version

from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.access.history.repository import PolicyRepository
from gateway.audit.reader import AuditReader
from gateway.audit.service import AuditService
from gateway.audit.shipping_loop import Lag
from gateway.errors import ConfigError
from gateway.flow.context import RequestContext, SystemClock, SystemIds
from gateway.places import spool_dir
from gateway.settings import Settings
from gateway.storage.postgres import make_engine

LONG_STATEMENT_S = 600.0
"""A walk through the whole trail, or the removal of a month of it, is one statement."""


@asynccontextmanager
async def open_trail(database_url: str) -> AsyncIterator[tuple[AuditReader, AsyncEngine]]:
    """The trail as it is in the database, without waiting for what a gateway still has in its spool."""
    async with _engine(database_url, pool_size=1) as engine:
        yield AuditReader(engine, cursor_key=b"", settle=_as_it_is), engine


@asynccontextmanager
async def open_upkeep(database_url: str, settings: Settings) -> AsyncIterator[tuple[AsyncEngine, AuditService]]:
    """For changes of the trail itself. Raises `ConfigError`."""
    async with _engine(database_url, pool_size=4) as engine, AsyncExitStack() as stack:
        yield engine, await start_audit(engine, settings, stack)


@asynccontextmanager
async def open_policies(database_url: str) -> AsyncIterator[tuple[AsyncEngine, PolicyRepository]]:
    engine = make_engine(database_url, pool_size=2)
    try:
        yield engine, PolicyRepository(engine)
    finally:
        await engine.dispose()


async def start_audit(engine: AsyncEngine, settings: Settings, stack: AsyncExitStack) -> AuditService:
    """A run of its own beside the gateways, for what a command puts on record. Raises `ConfigError`."""
    folder = spool_dir(settings)
    audit = AuditService(
        engine,
        settings=settings.audit,
        spool_dir=folder,
        clock=SystemClock(),
        ids=SystemIds(),
        node_id=socket.gethostname(),
        gateway_version=installed_version("esclusa"),
    )
    try:
        await audit.start()
    except OSError as error:
        raise ConfigError(
            f"the audit spool {folder} cannot be written ({error.strerror}), so nothing was changed",
            hint="run this as the user of the gateway, or set ESCLUSA_AUDIT__SPOOL_DIR",
        ) from None
    stack.push_async_callback(audit.close)
    return audit


def command_context(command: str) -> RequestContext:
    """The request that a command is, for its audit record."""
    clock = SystemClock()
    return RequestContext(
        request_id=SystemIds().uuid7(),
        received_at=clock.now(),
        started_s=clock.monotonic_s(),
        route=command,
        method="CLI",
    )


@asynccontextmanager
async def _engine(database_url: str, *, pool_size: int) -> AsyncIterator[AsyncEngine]:
    engine = make_engine(
        database_url, pool_size=pool_size, statement_timeout_s=LONG_STATEMENT_S, application_name="esclusa-audit"
    )
    try:
        yield engine
    finally:
        await engine.dispose()


async def _as_it_is(_timeout_s: float) -> Lag:
    return Lag(watermark=datetime.now(UTC), seconds=0.0)
