"""Disks that are full, broken or hanging: nothing runs unrecorded, and the service comes back by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.audit import service as service_module
from gateway.audit import spool as spool_module
from gateway.audit.service import AuditService
from gateway.audit.verify import verify
from gateway.errors import Unavailable
from gateway.storage.postgres import make_engine
from tests.fakes.disks import FaultyDisk
from tests.fakes.exchanges import admitted, change, denied, finished
from tests.fakes.hang_guard import hang_guard

MODES = ("strict", "standard", "fast")


async def until_healthy(service: AuditService, limit_s: float = 5.0) -> None:
    for _ in range(round(limit_s / 0.02)):
        if service.healthy:
            return
        await asyncio.sleep(0.02)
    pytest.fail("the service did not recover")


async def phases(rows: Any, request_id: Any) -> list[str]:
    return [row["phase"] for row in await rows("request_id = :id", id=request_id)]


@pytest.mark.parametrize("mode", MODES)
async def test_a_full_disk_refuses_with_503_and_recovers_by_itself(start: Any, rows: Any, mode: str) -> None:
    disk = FaultyDisk()
    service = await start(mode=mode, open_file=disk.open)
    disk.fill()
    refused = admitted()
    with pytest.raises(Unavailable) as error:
        await service.intent(refused)
    assert (error.value.status, error.value.code) == (503, "audit_unavailable")
    assert "is not run" in error.value.message
    assert not service.healthy
    disk.repair()
    await until_healthy(service)
    exchange = admitted()
    await service.intent(exchange)
    await service.completion(finished(exchange))
    await service.settle(5)
    assert await phases(rows, exchange.request_id) == ["intent", "completion"]
    assert await phases(rows, refused.request_id) == []


@pytest.mark.parametrize("mode", MODES)
async def test_the_completion_of_an_admitted_request_outlives_a_full_disk(start: Any, rows: Any, mode: str) -> None:
    disk = FaultyDisk()
    service = await start(mode=mode, open_file=disk.open)
    exchange = admitted()
    await service.intent(exchange)
    disk.fill()
    if mode == "strict":
        with pytest.raises(Unavailable) as told:
            await service.completion(finished(exchange))
        assert "was run" in told.value.message
        assert "not run" not in told.value.message
    else:
        await service.completion(finished(exchange))
    await asyncio.sleep(0.7)
    disk.repair()
    await until_healthy(service)
    await service.settle(5)
    assert await phases(rows, exchange.request_id) == ["intent", "completion"]


async def test_a_failed_sync_poisons_the_segment_and_the_next_one_takes_over(start: Any, rows: Any) -> None:
    disk = FaultyDisk()
    service = await start(mode="strict", open_file=disk.open)
    first = admitted()
    await service.intent(first)
    disk.break_sync(times=1)
    second = admitted()
    await service.intent(second)
    assert len(disk.opened) == 2
    await service.settle(5)
    assert [row["node_seq"] for row in await rows("true")] == [1, 2, 3]


async def test_what_fast_mode_acknowledged_before_a_failed_sync_is_written_again(
    start: Any, rows: Any, engine: AsyncEngine, away: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk()
    disk.drops_unsynced = True
    service = await start(mode="fast", into=away, open_file=disk.open)
    monkeypatch.setattr(spool_module, "CACHE_SYNC_S", 3600.0)
    acknowledged = [admitted() for _ in range(5)]
    for exchange in acknowledged:
        await service.intent(exchange)
    disk.break_sync(times=1)
    monkeypatch.setattr(spool_module, "CACHE_SYNC_S", 0.0)
    last = admitted()
    await service.intent(last)
    assert disk.sync_failures_left == 0
    service._shipping.shipper._engine = service._shipping._engine = engine
    await service.settle(10)
    assert [row["request_id"] for row in await rows()] == [exchange.request_id for exchange in (*acknowledged, last)]
    (report,) = [report async for report in verify(engine, key=service.commitment_key)]
    assert report.problems == ()
    assert service.status()["quarantined_files"] == 0


async def test_the_chain_is_whole_after_poisoned_segments_and_refusals(start: Any, engine: Any) -> None:
    disk = FaultyDisk()
    service = await start(mode="strict", open_file=disk.open)
    for round_number in range(6):
        if round_number % 2:
            disk.break_sync()
        try:
            exchange = admitted()
            await service.intent(exchange)
            await service.completion(finished(exchange))
        except Unavailable:
            disk.repair()
            await until_healthy(service)
    await service.settle(5)
    (report,) = [report async for report in verify(engine, key=service.commitment_key)]
    assert report.problems == ()
    assert report.checked == 7


async def test_refusals_that_could_not_be_recorded_are_counted_in_one_record(start: Any, rows: Any) -> None:
    disk = FaultyDisk()
    service = await start(mode="standard", open_file=disk.open)
    disk.fill()
    with pytest.raises(Unavailable):
        await service.intent(admitted())
    for _ in range(3):
        with pytest.raises(Unavailable):
            await service.completion(denied(status=401, code="token_expired"))
    disk.repair()
    await until_healthy(service)
    await asyncio.sleep(1.0)
    await service.settle(5)
    (row,) = await rows("phase = 'aggregated'")
    assert b'"count":3' in row["rec"]


async def test_admin_changes_are_refused_while_nothing_can_be_recorded(start: Any) -> None:
    disk = FaultyDisk()
    service = await start(mode="standard", open_file=disk.open)
    disk.fill()
    with pytest.raises(Unavailable):
        await service.admin(change())


async def test_a_disk_that_hangs_refuses_within_the_stall_limit(
    start: Any, rows: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(service_module, "STALL_S", 0.3)
    monkeypatch.setattr(service_module, "WATCH_S", 0.05)
    disk = FaultyDisk()
    service = await start(mode="strict", open_file=disk.open)
    request.addfinalizer(disk.release.set)
    disk.release.clear()
    exchange = admitted()
    async with hang_guard():  # the disk hangs until the test releases it
        with pytest.raises(Unavailable):
            await service.intent(exchange)
    with pytest.raises(Unavailable):
        await service.completion(finished(exchange, status=503))
    disk.release.set()
    await until_healthy(service)
    await service.settle(5)
    assert await phases(rows, exchange.request_id) == ["intent", "completion"]


async def test_the_quota_refuses_until_records_are_shipped(start: Any, rows: Any, database_url: str) -> None:
    away = make_engine("postgresql://nobody:x@127.0.0.1:1/none")
    service = await start(mode="standard", into=away, spool_quota_bytes=100_000)
    admitted_count = 0

    async def admit_many() -> None:
        nonlocal admitted_count
        for _ in range(200):
            await service.intent(admitted())
            admitted_count += 1

    with pytest.raises(Unavailable) as refused:
        await admit_many()
    assert refused.value.detail == "the audit spool is full"
    assert 20 < admitted_count < 100
    assert not service.healthy
    # Postgres comes back: what waited is shipped, its segments are deleted, requests are admitted again.
    service._shipping.shipper._engine = make_engine(database_url)
    await until_healthy(service, 10)
    await service.intent(admitted())
    await service.settle(5)
    assert len(await rows()) == admitted_count + 1
    await service._shipping.shipper._engine.dispose()
    await away.dispose()
