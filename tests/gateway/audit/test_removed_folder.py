"""The spool taken away under a running gateway: what was answered is still on record, and somebody is told."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.audit.service import AuditService
from gateway.audit.spool_dirs import boot_folders, dead_boots
from gateway.audit.verify import verify
from gateway.errors import Unavailable
from tests.fakes.exchanges import admitted, finished


def remove_spool(spool: Path) -> None:
    while spool.exists():  # the writer may make a segment while the folder is being emptied
        shutil.rmtree(spool, ignore_errors=True)


def remove_boot(spool: Path) -> None:
    shutil.rmtree(next(boot_folders(spool)))


def remove_segment(spool: Path) -> None:
    next(spool.glob("*/*/0*.log")).unlink()


def move_spool(spool: Path) -> None:
    """Another disk is mounted there, or a folder swapped: the file lives on, elsewhere."""
    spool.rename(spool.with_name("elsewhere"))
    spool.mkdir()


def block_spool(spool: Path) -> None:
    spool.write_text("a file where the folder was")


def unblock_spool(spool: Path) -> None:
    spool.unlink()


def cut_segment(spool: Path) -> None:
    with next(spool.glob("*/*/0*.log")).open("r+b") as file:
        file.truncate(0)


REMOVALS: list[Callable[[Path], None]] = [remove_spool, remove_boot, remove_segment, move_spool]


async def record(service: AuditService, count: int = 10) -> list[UUID]:
    ids = []
    for _ in range(count):
        exchange = admitted()
        await service.intent(exchange)
        await service.completion(finished(exchange))
        ids.append(exchange.request_id)
    return ids


async def settled(service: AuditService) -> None:
    for _ in range(300):
        if (await service.settle(1)).seconds == 0 and not service._shipping.outage:
            return
        await asyncio.sleep(0.05)
    pytest.fail(f"not shipped: {service.status()}")


async def problems(service: AuditService, engine: AsyncEngine) -> list[Any]:
    return [p async for report in verify(engine, key=service.commitment_key) for p in report.problems]


@pytest.mark.parametrize("mode", ["strict", "standard", "fast"])
@pytest.mark.parametrize("remove", REMOVALS, ids=lambda remove: remove.__name__)
async def test_records_before_and_behind_the_removal_arrive(
    start: Any,
    rows: Any,
    engine: AsyncEngine,
    away: AsyncEngine,
    spool_dir: Path,
    remove: Callable[[Path], None],
    mode: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = await start(into=away, mode=mode)
    before = await record(service)
    remove(spool_dir)
    with caplog.at_level(logging.ERROR, "esclusa.audit"):
        behind = await record(service)
    service._shipping.shipper._engine = service._shipping._engine = engine
    await settled(service)
    for request in (*before, *behind):
        assert [row["phase"] for row in await rows("request_id = :id", id=request)] == ["intent", "completion"]
    assert await problems(service, engine) == []
    assert service.status()["spool_restored"] == 1
    assert service.healthy
    assert any("was removed under the running gateway" in line for line in caplog.messages)


async def test_the_shipper_misses_the_folder_and_has_it_put_back_without_another_request(
    start: Any, rows: Any, engine: AsyncEngine, away: AsyncEngine, spool_dir: Path
) -> None:
    service = await start(into=away)
    await record(service)
    await service._spool.flush()
    remove_spool(spool_dir)
    service._shipping.shipper._engine = service._shipping._engine = engine
    await settled(service)
    assert len(await rows()) == 20


async def test_an_answer_given_behind_the_removal_outlives_the_process(
    start: Any, rows: Any, away: AsyncEngine, spool_dir: Path
) -> None:
    service = await start(into=away, mode="strict")
    await record(service)
    remove_spool(spool_dir)
    await record(service)
    await service.close()
    later = await start()
    for _ in range(300):
        if later.status()["recovered"]:
            break
        await asyncio.sleep(0.05)
    await settled(later)
    assert len(await rows()) == 40


async def test_nobody_takes_over_a_folder_that_was_put_back(start: Any, away: AsyncEngine, spool_dir: Path) -> None:
    service = await start(into=away)
    remove_spool(spool_dir)
    await record(service, 1)
    assert list(dead_boots(spool_dir, UUID(int=1))) == []
    assert len(list(boot_folders(spool_dir))) == 1


async def test_the_commitment_key_is_put_back_too(start: Any, away: AsyncEngine, spool_dir: Path) -> None:
    service = await start(into=away)
    key = (spool_dir / "commitment.key").read_bytes()
    remove_spool(spool_dir)
    await record(service, 1)
    assert (spool_dir / "commitment.key").read_bytes() == key


async def test_while_the_folder_cannot_be_made_requests_are_refused_and_nothing_written_is_lost(
    start: Any, rows: Any, engine: AsyncEngine, away: AsyncEngine, spool_dir: Path
) -> None:
    service = await start(into=away)
    before = await record(service)
    await service._spool.flush()
    remove_spool(spool_dir)
    block_spool(spool_dir)
    with pytest.raises(Unavailable):
        await record(service, 1)
    assert not service.healthy
    assert "removed" in str(service.status()["failure"])
    unblock_spool(spool_dir)
    for _ in range(200):
        if service.healthy:
            break
        await asyncio.sleep(0.05)
    behind = await record(service)
    service._shipping.shipper._engine = service._shipping._engine = engine
    await settled(service)
    for request in (*before, *behind):
        assert [row["phase"] for row in await rows("request_id = :id", id=request)] == ["intent", "completion"]
    assert await problems(service, engine) == []


async def test_segments_that_were_closed_and_removed_are_named_as_lost(
    start: Any, rows: Any, engine: AsyncEngine, away: AsyncEngine, spool_dir: Path
) -> None:
    service = await start(into=away)
    await record(service)
    service._spool.rotate()
    await record(service)
    remove_spool(spool_dir)
    await record(service)
    service._shipping.shipper._engine = service._shipping._engine = engine
    await settled(service)
    kinds = {problem.kind for problem in await problems(service, engine)}
    assert kinds == {"lost"}
    own = "action IS DISTINCT FROM 'audit.damage' AND outcome IS DISTINCT FROM 'record_lost'"
    assert service.status()["lost_records"] == 61 - len(await rows(own))


async def test_a_segment_that_somebody_emptied_is_left_for_a_new_one(
    start: Any, rows: Any, engine: AsyncEngine, away: AsyncEngine, spool_dir: Path
) -> None:
    service = await start(into=away)
    await record(service)
    await service._spool.flush()
    cut_segment(spool_dir)
    behind = await record(service)
    service._shipping.shipper._engine = service._shipping._engine = engine
    await settled(service)
    for request in behind:
        assert [row["phase"] for row in await rows("request_id = :id", id=request)] == ["intent", "completion"]
    assert service.status()["lost_records"] == 21
    assert {problem.kind for problem in await problems(service, engine)} == {"lost"}
