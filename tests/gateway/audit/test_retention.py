"""Records past their time are removed by the month, the trail says so, and verify tells that from a deletion."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.audit.canonical import parse_json
from gateway.audit.verify import verify
from tests.fakes.exchanges import admitted, finished
from tests.fakes.shifted_clock import ShiftedClock


async def record(service: Any, count: int = 2) -> None:
    for _ in range(count):
        exchange = admitted()
        await service.intent(exchange)
        await service.completion(finished(exchange))
    await service.settle(5)


async def run(engine: AsyncEngine, statement: str, **values: Any) -> Any:
    async with engine.begin() as connection:
        result = await connection.execute(text(statement), values)
        return result.scalar() if result.returns_rows else None


async def problems(engine: AsyncEngine, service: Any) -> list[tuple[str, int]]:
    found = [one for report in [r async for r in verify(engine, key=service.commitment_key)] for one in report.problems]
    return [(problem.kind, problem.node_seq) for problem in found]


@pytest.fixture
async def old(start: Any, engine: AsyncEngine) -> ShiftedClock:
    """A run of 300 days ago, whose month has a partition of its own."""
    clock = ShiftedClock(timedelta(days=-300))
    await run(engine, "SELECT audit_ensure_partitions(0, :at)", at=clock.now())
    service = await start(clock=clock)
    await record(service)
    await service.close()
    return clock


async def test_a_month_past_its_time_is_removed_and_the_trail_says_what_it_held(
    start: Any, engine: AsyncEngine, rows: Any, old: ShiftedClock
) -> None:
    service = await start(retention_days=200)
    await record(service)
    before = await rows("true")
    month = f"audit_event_{old.now():%Y_%m}"
    assert [(one.part, one.rows) for one in await service.find_expired()] == [(month, 5)]
    assert [one.part for one in await service.retain()] == [month]
    await service.settle(5)
    assert await run(engine, "SELECT to_regclass(:name)", name=month) is None
    (told,) = [parse_json(row["rec"])["system"] for row in await rows("action = 'audit.retain'")]
    gone = [row for row in before if row["ts"] < old.now() + timedelta(days=60)]
    assert (told["part"], told["rows"]) == (month, 5)
    assert told["chains"][0]["ranges"] == [[1, 5, gone[-1]["hash"].hex()]]
    assert await problems(engine, service) == []
    assert await service.retain() == []


async def test_a_month_that_is_dropped_without_a_word_is_missed(
    start: Any, engine: AsyncEngine, old: ShiftedClock
) -> None:
    service = await start()
    await record(service)
    await run(engine, f"DROP TABLE audit_event_{old.now():%Y_%m}")
    assert await problems(engine, service) == [("missing_run", 1)]


async def test_a_chain_over_the_turn_of_a_month_goes_on_where_the_removed_part_ended(
    start: Any, engine: AsyncEngine, rows: Any
) -> None:
    clock = ShiftedClock(timedelta(days=-300))
    await run(engine, "SELECT audit_ensure_partitions(12, :at)", at=clock.now())
    service = await start(clock=clock, retention_days=200)
    await record(service)
    service._clock = ShiftedClock(timedelta(days=-30))
    await record(service)
    service._clock = ShiftedClock(timedelta())
    assert sum(one.rows for one in await service.retain()) == 5
    await service.settle(5)
    assert [row["node_seq"] for row in await rows()] == [6, 7, 8, 9]
    assert await problems(engine, service) == []
    async with engine.begin() as connection:
        await connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        await connection.exec_driver_sql("DELETE FROM audit_event WHERE node_seq = 6")
    assert await problems(engine, service) == [("missing", 6)]


@pytest.mark.parametrize(
    ("part", "before", "state"),
    [
        ("audit_event_2020_01", "now() - interval '10 days'", "42501"),
        ("audit_quarantine", "now()", "42501"),
        ("policy_version", "now() - interval '400 days'", "42704"),
        ("audit_event_default", "now() - interval '400 days'", "42704"),
        ("current", "now() - interval '400 days'", "42501"),
    ],
)
async def test_the_database_removes_nothing_that_must_be_kept(
    engine: AsyncEngine, part: str, before: str, state: str
) -> None:
    part = await run(engine, "SELECT 'audit_event_' || to_char(now(), 'YYYY_MM')") if part == "current" else part
    with pytest.raises(DBAPIError) as refused:
        await run(engine, f"SELECT audit_drop_expired('{part}', {before})")
    assert getattr(refused.value.orig, "sqlstate", None) == state
