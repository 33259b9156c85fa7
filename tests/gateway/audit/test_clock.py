"""Clocks that are wrong: the records arrive all the same, somebody is told, and nothing stops months later."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.audit.reader import AuditReader, EventFilter
from gateway.audit.service import AuditService
from gateway.audit.verify import verify
from gateway.storage.migrate import downgrade, upgrade
from tests.fakes.exchanges import admitted, finished
from tests.fakes.shifted_clock import ShiftedClock

AHEAD = timedelta(days=200)


async def record(service: AuditService, count: int = 1) -> list[Any]:
    ids = []
    for _ in range(count):
        exchange = admitted()
        await service.intent(exchange)
        await service.completion(finished(exchange))
        ids.append(exchange.request_id)
    await service.settle(5)
    return ids


async def value(engine: AsyncEngine, statement: str, **params: Any) -> Any:
    async with engine.begin() as connection:
        result = await connection.execute(text(statement), params)
        return result.scalar() if result.returns_rows else None


async def test_records_of_a_clock_that_is_months_ahead_arrive_and_are_told(
    start: Any, rows: Any, engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "esclusa.audit"):
        service = await start(clock=ShiftedClock(AHEAD))
        await record(service, 3)
    assert len(await rows()) == 6
    state = service.status()
    assert state["misdated"] == 7
    assert abs(float(str(state["clock_skew_s"])) - AHEAD.total_seconds()) < 60
    assert any("after Postgres' clock" in line for line in caplog.messages)
    assert any("this machine's clock differs" in line for line in caplog.messages)


async def test_a_clock_that_is_behind_is_told_too(start: Any, rows: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "esclusa.audit"):
        service = await start(clock=ShiftedClock(timedelta(days=-3)))
        await record(service)
    assert len(await rows()) == 2
    assert any("this machine's clock differs from Postgres' by -2592" in line for line in caplog.messages)


async def test_the_reader_finds_a_record_of_the_future_where_it_is_dated(start: Any, engine: AsyncEngine) -> None:
    service = await start(clock=ShiftedClock(AHEAD))
    (request,) = await record(service)
    reader = AuditReader(engine, cursor_key=service.cursor_key, settle=service.settle)
    then = datetime.now(UTC) + AHEAD
    page = await reader.events(EventFilter(start=then - timedelta(hours=1), end=then + timedelta(hours=1)), limit=10)
    assert {event["request_id"] for event in page.events} == {request}


async def test_when_their_month_comes_the_rows_move_into_its_partition_unchanged(
    start: Any, rows: Any, engine: AsyncEngine
) -> None:
    wrong = await start(clock=ShiftedClock(AHEAD))
    await record(wrong, 3)
    before = await rows()
    assert await value(engine, "SELECT count(*) FROM audit_event_default") == 7
    assert await value(engine, "SELECT audit_ensure_partitions(3, :at)", at=datetime.now(UTC) + AHEAD) > 0
    assert await value(engine, "SELECT count(*) FROM audit_event_default") == 0
    assert await rows() == before
    problems = [p async for report in verify(engine, key=wrong.commitment_key) for p in report.problems]
    assert problems == []
    for table in ("audit_event_default", "audit_event"):
        with pytest.raises(Exception, match="append-only"):
            await value(engine, f"TRUNCATE {table}")
    with pytest.raises(Exception, match="append-only"):
        await value(engine, "DELETE FROM audit_event")


async def test_rows_of_other_months_stay_in_the_default_partition(start: Any, rows: Any, engine: AsyncEngine) -> None:
    await record(await start(clock=ShiftedClock(AHEAD)))
    await record(await start(clock=ShiftedClock(AHEAD + timedelta(days=400))))
    await value(engine, "SELECT audit_ensure_partitions(1, :at)", at=datetime.now(UTC) + AHEAD)
    assert await value(engine, "SELECT count(*) FROM audit_event_default") == 3
    assert len(await rows()) == 4


async def test_shipping_goes_on_over_a_months_turn_with_rows_of_that_month_in_the_default_partition(
    start: Any, rows: Any, engine: AsyncEngine
) -> None:
    month = (datetime.now(UTC).replace(day=1) + timedelta(days=32)).strftime("%Y_%m")
    await value(engine, f"DROP TABLE audit_event_{month}")
    wrong = ShiftedClock(datetime.now(UTC).replace(day=1) + timedelta(days=40) - datetime.now(UTC))
    await value(engine, "ALTER FUNCTION audit_ensure_partitions RENAME TO audit_ensure_later")
    service = await start(clock=wrong)
    await record(service)
    assert await value(engine, "SELECT count(*) FROM audit_event_default") == 3
    assert service.status()["housekeeping_fails"]
    await service.close()
    await value(engine, "ALTER FUNCTION audit_ensure_later RENAME TO audit_ensure_partitions")
    right = await start()
    await record(right, 5)
    assert len(await rows()) == 12
    assert await value(engine, f"SELECT count(*) FROM audit_event_{month}") == 3
    assert (right.status()["stray_rows"], right.status()["housekeeping_fails"]) == (0, False)


async def test_partitions_that_cannot_be_made_are_told_and_stop_nothing(
    start: Any, rows: Any, engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    await value(
        engine,
        "CREATE OR REPLACE FUNCTION audit_ensure_partitions(months_ahead integer, at timestamptz DEFAULT now()) "
        "RETURNS integer LANGUAGE plpgsql AS 'BEGIN RAISE check_violation; END'",
    )
    with caplog.at_level(logging.ERROR, "esclusa.audit"):
        service = await start()
        await record(service, 5)
    assert len(await rows()) == 10
    assert service.status()["housekeeping_fails"]
    assert any("partitions of the audit trail cannot be made" in line for line in caplog.messages)


async def test_rows_that_no_partition_takes_are_counted_and_told(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    await record(await start(clock=ShiftedClock(AHEAD)))
    with caplog.at_level(logging.ERROR, "esclusa.audit"):
        later = await start()
        await record(later)
    assert later.status()["stray_rows"] == 3
    assert any("month without a partition" in line for line in caplog.messages)


async def test_the_revision_goes_down_and_up_again(start: Any, rows: Any, database_url: str) -> None:
    await record(await start(clock=ShiftedClock(AHEAD)))
    await downgrade(database_url, "0005_people")
    await upgrade(database_url)
    assert len(await rows()) == 2
