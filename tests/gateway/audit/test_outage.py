"""Postgres stopped, frozen or refusing a row: requests go on, records wait, nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.audit.boot_reader import Checkpoint
from gateway.audit.canonical import parse_json
from gateway.audit.reader import AuditReader, EventFilter
from gateway.audit.service import AuditService
from gateway.audit.verify import verify
from gateway.errors import Unavailable
from gateway.local.postgres import PrivatePostgres
from gateway.storage.migrate import downgrade, upgrade
from gateway.storage.postgres import make_engine
from tests.fakes.exchanges import ANA, admitted, finished
from tests.fakes.hang_guard import hang_guard


@pytest.fixture(scope="module")
def spare_postgres(store_dir: Path) -> Iterator[PrivatePostgres]:
    """A second server, which the tests of this file may stop and freeze."""
    server = PrivatePostgres(store_dir / "spare", options={"fsync": "off", "max_connections": "40"})
    server.start()
    yield server
    server.stop()


@pytest.fixture
def own_postgres(spare_postgres: PrivatePostgres) -> PrivatePostgres:
    """The second server, running."""
    if not spare_postgres.running:
        spare_postgres.start(port=spare_postgres.port)
    return spare_postgres


@pytest.fixture
async def own_engine(own_postgres: PrivatePostgres) -> AsyncIterator[AsyncEngine]:
    await downgrade(own_postgres.url, "base")
    await upgrade(own_postgres.url)
    engine = make_engine(own_postgres.url, statement_timeout_s=2, connect_timeout_s=1)
    yield engine
    await engine.dispose()


async def serve(service: AuditService, count: int) -> None:
    for _ in range(count):
        exchange = admitted()
        await service.intent(exchange)
        await service.completion(finished(exchange))


async def count(engine: AsyncEngine) -> tuple[int, int]:
    async with engine.connect() as connection:
        row = (await connection.execute(text("SELECT count(*), count(DISTINCT event_id) FROM audit_event"))).one()
    return row[0], row[1]


async def settled(service: AuditService, limit_s: float = 15.0) -> None:
    deadline = time.monotonic() + limit_s
    while (await service.settle(1)).seconds > 0:
        assert time.monotonic() < deadline, service.status()
        await asyncio.sleep(0.1)


async def test_requests_go_on_while_postgres_is_stopped_and_all_records_arrive_once(
    start: Any, own_postgres: PrivatePostgres, own_engine: AsyncEngine
) -> None:
    service = await start(mode="standard", into=own_engine)
    await serve(service, 5)
    port = own_postgres.port
    own_postgres.stop()
    await serve(service, 20)
    assert service.healthy
    assert (await service.settle(0.2)).seconds > 0
    own_postgres.start(port=port)
    await settled(service)
    assert await count(own_engine) == (51, 51)


async def test_requests_do_not_feel_a_frozen_postgres(
    start: Any, own_postgres: PrivatePostgres, own_engine: AsyncEngine
) -> None:
    service = await start(mode="standard", into=own_engine)
    await serve(service, 5)
    await settled(service)
    assert own_postgres.pid is not None
    backends = await _backends(own_engine)
    for pid in (own_postgres.pid, *backends):
        os.kill(pid, signal.SIGSTOP)
    try:
        async with hang_guard():  # Postgres is frozen until this block has ended
            await serve(service, 30)
            await service.settle(0.3)
    finally:
        for pid in (own_postgres.pid, *backends):
            os.kill(pid, signal.SIGCONT)
    await settled(service, 30)
    assert await count(own_engine) == (71, 71)


async def _backends(engine: AsyncEngine) -> list[int]:
    async with engine.connect() as connection:
        found = await connection.execute(text("SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"))
        return [row[0] for row in found]


async def test_reading_says_503_with_the_lag_while_postgres_is_away(
    start: Any, own_postgres: PrivatePostgres, own_engine: AsyncEngine
) -> None:
    service = await start(mode="standard", into=own_engine)
    await serve(service, 1)
    await settled(service)
    own_postgres.stop()
    reader = AuditReader(own_engine, cursor_key=service.cursor_key, settle=service.settle)
    now = service._clock.now()
    with pytest.raises(Unavailable) as refused:
        await reader.events(EventFilter(start=now, end=now))
    assert refused.value.code == "audit_unavailable"


async def test_the_service_starts_without_postgres(start: Any, rows: Any, database_url: str) -> None:
    away = make_engine("postgresql://nobody:x@127.0.0.1:1/none")
    service = await start(mode="strict", into=away)
    await serve(service, 3)
    await service.close()
    await away.dispose()
    later = await start(mode="strict")
    await settled(later)
    for _ in range(100):
        if later.status()["recovered"]:
            break
        await asyncio.sleep(0.05)
    assert len(await rows("phase = 'intent'")) == 3
    assert len(await rows("outcome = 'interrupted'")) == 0


async def test_a_row_that_postgres_refuses_is_quarantined_and_the_rest_arrives(
    start: Any, engine: AsyncEngine, rows: Any
) -> None:
    async with engine.begin() as connection:
        await connection.execute(
            text("ALTER TABLE audit_event ADD CONSTRAINT poison CHECK (subject IS DISTINCT FROM 'veneno')")
        )
    service = await start(mode="standard")
    poisoned = replace(ANA, subject="veneno")
    for place in range(40):
        exchange = admitted(poisoned if place in (7, 23) else ANA)
        await service.intent(exchange)
        await service.completion(finished(exchange))
    await settled(service)
    async with engine.connect() as connection:
        apart = (await connection.execute(text("SELECT node_seq, error, side FROM audit_quarantine ORDER BY 1"))).all()
    assert [row.node_seq for row in apart] == [16, 17, 48, 49]
    assert "CheckViolation" in apart[0].error
    assert b"veneno" in apart[0].side
    assert len(await rows()) == 76
    for _ in range(400):
        if service.status()["quarantined"]:
            break
        await asyncio.sleep(0.05)
    assert service.status()["quarantined"] == 4
    # A record that the database cannot make names each of them, and so verify tells them from rows that were moved.
    told = [parse_json(row["rec"])["system"] for row in await rows("action = 'audit.quarantine'")]
    assert [(one["row"]["seq"], one["error"]) for one in told] == [
        (seq, "CheckViolationError") for seq in (16, 17, 48, 49)
    ]
    (report,) = [report async for report in verify(engine, key=service.commitment_key)]
    assert [(one.kind, one.node_seq) for one in report.problems] == [("quarantined", seq) for seq in (16, 17, 48, 49)]


async def test_shipping_the_same_segment_twice_adds_nothing(start: Any, rows: Any, spool_dir: Path) -> None:
    service = await start(mode="strict")
    await serve(service, 10)
    await settled(service)
    service._shipping._reader.checkpoint = Checkpoint()
    await serve(service, 1)
    await settled(service)
    assert len(await rows()) == 22


async def test_a_schema_that_is_not_migrated_yet_only_delays(start: Any, empty_database_url: str) -> None:
    engine = make_engine(empty_database_url)
    service = await start(mode="standard", into=engine)
    await serve(service, 4)
    await service.settle(0.5)
    await upgrade(empty_database_url)
    await settled(service)
    assert await count(engine) == (9, 9)
    await service.close()
    await engine.dispose()
