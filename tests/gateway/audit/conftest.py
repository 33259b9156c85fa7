"""An audit service on a real Postgres and a spool of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.audit.content import ContentSealer
from gateway.audit.content_recorder import Redact
from gateway.audit.service import AuditService
from gateway.flow.context import Clock, SystemClock, SystemIds
from gateway.settings import AuditSettings
from gateway.storage.postgres import make_engine

Start = Callable[..., Awaitable[AuditService]]
Rows = Callable[..., Awaitable[list[Any]]]


@pytest.fixture
def spool_dir(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = make_engine(database_url)
    yield engine
    await engine.dispose()


@pytest.fixture
async def away() -> AsyncIterator[AsyncEngine]:
    """A database that does not answer."""
    engine = make_engine("postgresql://nobody:x@127.0.0.1:1/none")
    yield engine
    await engine.dispose()


@pytest.fixture
async def start(engine: AsyncEngine, spool_dir: Path) -> AsyncIterator[Start]:
    """Start services by hand: `await start(mode="strict")`; all are closed at the end."""
    started: list[AuditService] = []

    async def begin(
        *,
        into: AsyncEngine | None = None,
        node_id: str = "node-a",
        open_file: Any = None,
        sealer: ContentSealer | None = None,
        clock: Clock | None = None,
        spool: str | None = None,
        redact: Redact | None = None,
        **settings: Any,
    ) -> AuditService:
        more = {} if open_file is None else {"open_file": open_file}
        service = AuditService(
            into or engine,
            settings=AuditSettings(**settings),
            spool_dir=spool_dir if spool is None else spool_dir.parent / spool,
            clock=clock or SystemClock(),
            ids=SystemIds(),
            node_id=node_id,
            gateway_version="0.1.0",
            sealer=sealer,
            redact=redact,
            **more,
        )
        await service.start()
        started.append(service)
        return service

    yield begin
    for service in started:
        await service.close()


@pytest.fixture
async def service(start: Start) -> AuditService:
    return await start(mode="strict")


@pytest.fixture
def rows(engine: AsyncEngine) -> Rows:
    """Rows of the table in the order of their chains; without a condition, those about requests and people."""

    async def fetch(where: str = "phase <> 'system'", **params: Any) -> list[Any]:
        async with engine.connect() as connection:
            found = await connection.execute(
                text(f"SELECT * FROM audit_event WHERE {where} ORDER BY boot_id, node_seq"), params
            )
            return list(found.mappings())

    return fetch
