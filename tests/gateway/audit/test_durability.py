"""kill -9 at random moments: what was acknowledged is there, once, and what was cut off is closed as interrupted."""

from __future__ import annotations

import asyncio
import collections
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from gateway.audit.boot_reader import BootReader
from gateway.audit.segment import encode_header, segment_numbers, segment_path
from gateway.audit.service import AuditService
from gateway.audit.verify import verify

ROOT = Path(__file__).parents[3]


def boots(spool_dir: Path, node: str) -> list[Path]:
    return sorted(spool_dir.glob(f"{node}/*"))


async def kill_a_writer(url: str, spool: Path, mode: str, after_s: float) -> tuple[set[str], set[str]]:
    """Run a writer, end it with SIGKILL; the ids whose intent and completion it had acknowledged."""
    writer = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "tests/fakes/audit_writer.py"),
        url,
        str(spool),
        mode,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert writer.stdout is not None
    lines = [await writer.stdout.readline()]
    assert lines[0], "the writer did not start"
    await asyncio.sleep(after_s)
    writer.send_signal(signal.SIGKILL)
    lines += (await writer.stdout.read()).splitlines(keepends=True)
    await writer.wait()
    said = [line.decode().split() for line in lines if line.endswith(b"\n")]
    return {word[1] for word in said if word[0] == "i"}, {word[1] for word in said if word[0] == "c"}


async def recovered(service: AuditService) -> None:
    for _ in range(500):
        if service.status()["recovered"]:
            break
        await asyncio.sleep(0.02)
    else:
        pytest.fail("dead boots were not recovered")
    await service.settle(10)


@pytest.mark.parametrize("mode", ["strict", "standard", "fast"])
async def test_kill_minus_nine_loses_no_acknowledged_intent_and_repeats_nothing(
    start: Any, rows: Any, database_url: str, spool_dir: Path, mode: str
) -> None:
    chance = random.Random(mode)
    intents: set[str] = set()
    completions: set[str] = set()
    for _ in range(3):
        told = await kill_a_writer(database_url, spool_dir, mode, chance.uniform(0.0, 0.5))
        intents |= told[0]
        completions |= told[1]
    service = await start()
    await recovered(service)
    found = await rows()
    kinds = collections.Counter((str(row["request_id"]), row["phase"]) for row in found)
    assert intents
    assert [request for request in intents if kinds[request, "intent"] != 1] == []
    requests = {request for request, _ in kinds}
    assert [request for request in requests if kinds[request, "completion"] != 1] == []
    if mode == "strict":
        cut = {str(row["request_id"]) for row in found if row["outcome"] == "interrupted"}
        assert completions & cut == set()
    assert await problems(service) == []


async def problems(service: AuditService) -> list[Any]:
    return [
        problem async for report in verify(service._engine, key=service.commitment_key) for problem in report.problems
    ]


async def test_an_interrupted_request_keeps_who_asked_and_what_was_decided(
    start: Any, rows: Any, database_url: str, spool_dir: Path
) -> None:
    await kill_a_writer(database_url, spool_dir, "standard", 0.1)
    service = await start()
    await recovered(service)
    (cut, *_) = await rows("outcome = 'interrupted'")
    assert (cut["subject"], cut["rule_id"], cut["model_served"]) == ("u-1042", "r-7", "smollm2-135m-instruct")
    assert b'"interrupted":{"boot"' in cut["rec"]


async def test_recovery_leaves_no_folder_of_the_dead_behind(start: Any, database_url: str, spool_dir: Path) -> None:
    await kill_a_writer(database_url, spool_dir, "standard", 0.1)
    service = await start()
    await recovered(service)
    assert boots(spool_dir, "victim") == []
    assert len(boots(spool_dir, "node-a")) == 1


async def test_a_torn_tail_is_cut_and_what_is_before_it_kept(
    start: Any, rows: Any, database_url: str, spool_dir: Path
) -> None:
    intents, _ = await kill_a_writer("postgresql://a:b@127.0.0.1:1/none", spool_dir, "strict", 0.1)
    (folder,) = boots(spool_dir, "victim")
    last = segment_path(folder, segment_numbers(folder)[-1])
    whole = len(BootReader(folder).batch(None, 100_000).frames)
    with last.open("ab") as file:
        file.write(b"\x40\x00\x00\x00torn in the middle of a frame")
    service = await start()
    await recovered(service)
    victims = await rows("node_id = 'victim'")
    assert len(victims) == whole
    assert intents <= {str(row["request_id"]) for row in victims}


async def test_a_segment_without_a_whole_header_is_passed_over(start: Any, database_url: str, spool_dir: Path) -> None:
    await kill_a_writer(database_url, spool_dir, "strict", 0.05)
    (folder,) = boots(spool_dir, "victim")
    number = segment_numbers(folder)[-1] + 1
    segment_path(folder, number).write_bytes(encode_header(UUID(int=7), 1, b"0" * 32)[:20])
    service = await start()
    await recovered(service)
    assert service.status()["quarantined"] == 0
