"""A damaged spool, found dead or alive: every record that can be read arrives, every other one is named, once.

N requests are recorded while Postgres is away, the spool is damaged, Postgres comes back. What must be lost is known
from the bytes: a record is lost exactly when a byte of its frame was touched.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from typer.testing import CliRunner

from gateway.audit import quarantine
from gateway.audit.boot_reader import BootReader
from gateway.audit.segment import HEADER_BYTES, Frame, segment_path
from gateway.audit.segment_reader import read_pieces
from gateway.audit.service import AuditService
from gateway.audit.spool_dirs import boot_folders
from gateway.audit.verify import verify
from gateway.cli import audit as cli
from tests.fakes.exchanges import admitted, finished

REQUESTS = 30
CHANCE = random.Random(5)
Harm = Callable[[bytearray], None]


def flip(data: bytearray) -> None:
    data[len(data) // 4] ^= 0xFF


def flip_a_length(data: bytearray) -> None:
    data[HEADER_BYTES] ^= 1


def flip_in_header(data: bytearray) -> None:
    data[20] ^= 1


def another_version(data: bytearray) -> None:
    data[0:8] = b"ESCAUD02"


def garbage(data: bytearray) -> None:
    data[len(data) // 4 : len(data) // 4 + 200] = CHANCE.randbytes(200)


def zeros(data: bytearray) -> None:
    data[len(data) // 4 : len(data) // 4 + 4096] = bytes(4096)


def last_byte(data: bytearray) -> None:
    data[-1] ^= 1


def many_places(data: bytearray) -> None:
    for place in range(1000, len(data), 9000):
        data[place] ^= 0x10


def cut(data: bytearray) -> None:
    del data[len(data) * 3 // 4 :]


def cut_to_nothing(data: bytearray) -> None:
    del data[:]


def all_zeros(data: bytearray) -> None:
    data[:] = bytes(len(data))


IN_PLACE: list[Harm] = [
    flip, flip_a_length, flip_in_header, another_version, garbage, zeros, last_byte, many_places, all_zeros
]  # fmt: skip
CUTTING: list[Harm] = [cut, cut_to_nothing]


@dataclass
class Damaged:
    """What was written, and what the damage must cost."""

    boot: UUID
    path: Path
    before: bytes
    after: bytes
    requests: list[UUID]
    frames: list[Frame]

    @property
    def lost(self) -> set[int]:
        starts = [HEADER_BYTES, *(frame.end for frame in self.frames)]
        whole = zip(self.frames, starts, strict=False)
        return {f.seq for f, at in whole if self.after[at : f.end] != self.before[at : f.end]}


async def record(service: AuditService, count: int = REQUESTS) -> list[UUID]:
    ids = []
    for _ in range(count):
        exchange = admitted()
        await service.intent(exchange)
        await service.completion(finished(exchange))
        ids.append(exchange.request_id)
    await service._spool.flush()
    return ids


def harm(spool_dir: Path, requests: list[UUID], how: Harm) -> Damaged:
    (folder,) = boot_folders(spool_dir)
    path = segment_path(folder, 1)
    before = path.read_bytes()
    frames = BootReader(folder).batch(None, 10_000).frames
    data = bytearray(before)
    how(data)
    with path.open("r+b") as file:
        file.write(data)
        file.truncate(len(data))
    return Damaged(UUID(folder.name), path, before, bytes(data), requests, frames)


async def all_shipped(service: AuditService) -> None:
    for _ in range(600):
        state = service.status()
        if state["recovered"] and not service._shipping._own_damages and (await service.settle(1)).seconds == 0:
            return
        await asyncio.sleep(0.05)
    pytest.fail(f"not shipped: {service.status()}")


async def check(damaged: Damaged, service: AuditService, rows: Any, engine: AsyncEngine, spool_dir: Path) -> None:
    lost = damaged.lost
    arrived = [row["node_seq"] for row in await rows("boot_id = :boot", boot=damaged.boot)]
    own = [seq for seq in arrived if seq <= len(damaged.frames)]
    assert own == [frame.seq for frame in damaged.frames if frame.seq not in lost]
    # Each request has one completion: its own, or one that says that its own may be lost. Never `interrupted`.
    for place, request in enumerate(damaged.requests):
        found = await rows("request_id = :id", id=request)
        intent, completion = 2 * place + 2 not in lost, 2 * place + 3 not in lost  # 1 is the start of the run
        wanted = ([("intent", None)] if intent else []) + ([("completion", "ok")] if completion else [])
        wanted += [("completion", "record_lost")] if intent and not completion else []
        assert sorted((row["phase"], row["outcome"] or "") for row in found) == sorted((p, o or "") for p, o in wanted)
    # The trail, the quarantine, metrics, readiness and verify name what is gone.
    kept = quarantine.survey(spool_dir)
    named = [(one.first_seq or 0, one.records) for one in kept.damages]
    assert {seq for first, count in named for seq in range(first, first + (count or 0))} == lost
    assert (spool_dir / "quarantine" / f"boot-{damaged.boot}" / "0000000001.log").read_bytes()[
        : len(damaged.after)
    ] == (damaged.after)
    state = service.status()
    assert (state["quarantined_files"], state["lost_records"]) == (1, len(lost))
    assert service.healthy
    problems = [p async for report in verify(engine, key=service.commitment_key) for p in report.problems]
    assert {problem.kind for problem in problems} == ({"lost"} if lost else set())
    records = await rows("action = 'audit.damage'")
    assert len(records) == len(kept.damages)
    assert {row["request_id"] for row in records} == {damaged.boot}


@pytest.mark.parametrize("how", [*IN_PLACE, *CUTTING], ids=lambda how: how.__name__)
async def test_damage_found_at_the_next_start_costs_the_records_it_hit_and_names_them(
    start: Any,
    rows: Any,
    engine: AsyncEngine,
    away: AsyncEngine,
    spool_dir: Path,
    how: Harm,
    caplog: pytest.LogCaptureFixture,
) -> None:
    dead = await start(into=away)
    requests = await record(dead)
    await dead.close()
    damaged = harm(spool_dir, requests, how)
    with caplog.at_level(logging.ERROR, "esclusa.audit"):
        service = await start()
        await all_shipped(service)
    assert any("audit spool is damaged" in line for line in caplog.messages)
    await check(damaged, service, rows, engine, spool_dir)
    assert [folder.name for folder in boot_folders(spool_dir)] != [str(damaged.boot)]
    assert not damaged.path.exists()


@pytest.mark.parametrize("how", [*IN_PLACE, cut], ids=lambda how: how.__name__)
async def test_damage_under_a_running_gateway_costs_the_records_it_hit_and_names_them(
    start: Any, rows: Any, engine: AsyncEngine, away: AsyncEngine, spool_dir: Path, how: Harm
) -> None:
    service = await start(into=away)
    requests = await record(service)
    damaged = harm(spool_dir, requests, how)
    service._shipping.shipper._engine = service._shipping._engine = engine
    later = await record(service, 10)
    await all_shipped(service)
    for request in later:
        assert [row["phase"] for row in await rows("request_id = :id", id=request)] == ["intent", "completion"]
    if how is not cut:  # the writer appends where the file ends now
        await check(damaged, service, rows, engine, spool_dir)
    assert [row["node_seq"] for row in await rows() if row["node_seq"] in damaged.lost] == []
    await service.close()
    assert list(boot_folders(spool_dir)) == []
    problems = [p async for report in verify(engine, key=service.commitment_key) for p in report.problems]
    assert {problem.kind for problem in problems} <= {"lost"}
    assert sum(one.records or 0 for one in quarantine.survey(spool_dir).damages) == len(damaged.lost)


async def test_garbage_behind_what_was_acknowledged_is_a_torn_tail_and_no_damage(
    start: Any, rows: Any, engine: AsyncEngine, away: AsyncEngine, spool_dir: Path
) -> None:
    dead = await start(into=away)
    requests = await record(dead)
    await dead.close()
    harm(spool_dir, requests, lambda data: data.extend(CHANCE.randbytes(300)))
    service = await start()
    await all_shipped(service)
    assert len(await rows()) == 2 * REQUESTS
    assert service.status()["quarantined_files"] == 0
    assert list(boot_folders(spool_dir)) == [service._boot.folder] if service._boot else []


async def test_a_request_that_a_crash_cut_off_behind_the_damage_is_still_interrupted(
    start: Any, rows: Any, away: AsyncEngine, spool_dir: Path
) -> None:
    dead = await start(into=away)
    requests = await record(dead)
    open_one = admitted()
    await dead.intent(open_one)
    await dead.close()
    harm(spool_dir, requests, flip)
    service = await start()
    await all_shipped(service)
    assert [row["outcome"] for row in await rows("request_id = :id", id=open_one.request_id)] == [None, "interrupted"]


async def test_a_damage_is_reported_once_however_often_its_file_is_read(
    start: Any, rows: Any, engine: AsyncEngine, away: AsyncEngine, spool_dir: Path
) -> None:
    dead = await start(into=away)
    requests = await record(dead)
    await dead.close()
    damaged = harm(spool_dir, requests, flip)
    service = await start()
    await all_shipped(service)
    # The process died after the report and before the segment was passed: all of it is there once more.
    folder = spool_dir / "node-a" / str(damaged.boot)
    folder.mkdir()
    segment_path(folder, 1).write_bytes(damaged.after)
    await service.close()
    again = await start()
    await all_shipped(again)
    assert len(await rows("action = 'audit.damage'")) == 1
    assert again.status()["quarantined_files"] == 1


async def test_a_segment_that_nobody_can_read_a_record_of_is_kept_whole(
    start: Any, rows: Any, away: AsyncEngine, spool_dir: Path
) -> None:
    """A spool of a version to come, found after a downgrade."""
    folder = spool_dir / "node-a" / "01a22d3c-6ad0-7a28-9908-40d788dc40a9"
    folder.mkdir(parents=True)
    future = b"ESCAUD09" + CHANCE.randbytes(5000)
    segment_path(folder, 1).write_bytes(future)
    (folder / "0000000002.seg").write_bytes(future)
    service = await start()
    await all_shipped(service)
    assert (spool_dir / "quarantine" / f"boot-{folder.name}" / "0000000001.log").read_bytes() == future
    assert (folder / "0000000002.seg").read_bytes() == future
    (row,) = await rows("action = 'audit.damage'")
    assert b'"records"' not in row["rec"]


async def test_verify_exits_4_and_names_the_damage(
    start: Any, away: AsyncEngine, spool_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = await start(into=away)
    requests = await record(dead)
    await dead.close()
    damaged = harm(spool_dir, requests, flip)
    service = await start()
    await all_shipped(service)
    await service.close()
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("ESCLUSA_AUDIT__SPOOL_DIR", str(spool_dir))
    answer = await asyncio.to_thread(CliRunner().invoke, cli.app, ["verify"])
    assert answer.exit_code == 4
    (seq,) = damaged.lost
    assert f"lost at {damaged.boot} #{seq}" in answer.stdout
    assert f"kept in quarantine/boot-{damaged.boot}/" in answer.stdout


async def test_a_run_without_the_segment_that_its_checkpoint_names_has_lost_an_unknown_number(
    start: Any, rows: Any, engine: AsyncEngine, away: AsyncEngine, spool_dir: Path,
    database_url: str, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Its intents are in Postgres; the completions were in the segment, and nothing says how many."""
    dead = await start(mode="strict")
    exchange = admitted()
    await dead.intent(exchange)
    await dead.settle(5)
    dead._shipping.shipper._engine = dead._shipping._engine = away
    await dead.completion(finished(exchange))
    await dead.close()
    (folder,) = boot_folders(spool_dir)
    for path in (*folder.glob("*.log"), folder / "written"):
        path.unlink()
    assert (folder / "checkpoint").exists()
    service = await start()
    await all_shipped(service)
    assert [row["outcome"] for row in await rows("request_id = :id", id=exchange.request_id)] == [None, "record_lost"]
    (told,) = await rows("action = 'audit.damage'")
    assert (b'"records"' in told["rec"], b'"first_seq":3' in told["rec"]) == (False, True)
    assert not folder.exists()
    assert [p.kind async for report in verify(engine, key=service.commitment_key) for p in report.problems] == ["lost"]
    await service.close()
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("ESCLUSA_AUDIT__SPOOL_DIR", str(spool_dir))
    assert (await asyncio.to_thread(CliRunner().invoke, cli.app, ["verify"])).exit_code == 4


async def test_a_removal_that_was_cut_off_is_no_damage(start: Any, rows: Any, spool_dir: Path) -> None:
    """Whatever of a folder is left when the process dies while it removes it: all of it is in Postgres."""
    first = await start(mode="strict")
    await record(first, 2)
    await first.settle(5)
    boot = first._boot
    assert boot is not None
    kept = {path.name: path.read_bytes() for path in boot.folder.iterdir()}
    removed: list[str] = []
    unlink = Path.unlink

    def note(path: Path, missing_ok: bool = False) -> None:
        removed.append(path.name)
        unlink(path, missing_ok=missing_ok)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "unlink", note)
        boot.remove()
    await first.close()
    for step in range(1, len(removed)):
        boot.folder.mkdir(parents=True)
        for name in kept.keys() - set(removed[:step]):
            (boot.folder / name).write_bytes(kept[name])
        service = await start()
        await all_shipped(service)
        assert await rows("action = 'audit.damage'") == []
        await service.close()


async def test_an_older_version_does_not_take_the_quarantine_for_a_dead_processs_spool(
    start: Any, away: AsyncEngine, spool_dir: Path
) -> None:
    dead = await start(into=away)
    requests = await record(dead)
    await dead.close()
    harm(spool_dir, requests, flip)
    await all_shipped(await start())
    assert quarantine.survey(spool_dir).files == 1
    # Such a version looks for folders two levels down whose name is a boot's id.
    for folder in {quarantine.kept_path(spool_dir, one).parent for one in quarantine.survey(spool_dir).damages}:
        with pytest.raises(ValueError, match="badly formed"):
            UUID(folder.name)


def test_frames_are_read_as_the_table_assumes(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.write_bytes(b"")
    assert list(read_pieces(path, UUID(int=1), 0)) == []
