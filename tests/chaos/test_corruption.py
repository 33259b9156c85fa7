"""A damaged or removed spool of a whole gateway: each record arrives, or its loss is named."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.conftest import Count, Start
from tests.fakes.gateway_process import GatewayProcess, send
from tests.fakes.load import Asked, Trail, burst, reconcile

Harm = Callable[[bytearray], None]


def flip(data: bytearray) -> None:
    data[len(data) // 4] ^= 0xFF


def version(data: bytearray) -> None:
    data[0:8] = b"ESCAUD02"


def header_byte(data: bytearray) -> None:
    data[20] ^= 1


def zeros(data: bytearray) -> None:
    data[len(data) // 4 : len(data) // 4 + 4096] = bytes(4096)


def garbage(data: bytearray) -> None:
    data[len(data) // 4 : len(data) // 4 + 200] = os.urandom(200)


def cut(data: bytearray) -> None:
    del data[len(data) * 3 // 4 :]


def tail(data: bytearray) -> None:
    data += os.urandom(300)


def segment(gateway: GatewayProcess) -> Path:
    return max(gateway.spool.glob("*/*/0*.log"), key=lambda path: path.stat().st_size)


def damage(path: Path, harm: Harm) -> None:
    data = bytearray(path.read_bytes())
    harm(data)
    with path.open("r+b") as file:
        file.write(data)
        file.truncate(len(data))


def verdict(gateway: GatewayProcess) -> tuple[int, int]:
    """Exit status of `audit verify` and how many records the quarantine names as lost."""
    assert gateway.stop() == 0
    verified = gateway.verify()
    named = re.findall(r"kept in .*: (\d+) records lost", verified.stdout)
    return verified.returncode, sum(map(int, named))


def missing_records(trail: Trail) -> int:
    """Of clean requests none; where a completion was lost, another one stands for it and says so."""
    return sum(2 - len(found) for _, found in trail.wrong) + trail.outcomes.get("record_lost", 0)


async def recovered(gateway: GatewayProcess) -> None:
    """Whatever the killed process left is shipped, and what is damaged in it is reported."""
    for _ in range(300):
        if gateway.metric("esclusa_audit_recovered") == 1:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"not recovered: {gateway.tail()}")


async def records_waiting_in_the_spool(gateway: GatewayProcess) -> list[Asked]:
    asked = await burst(gateway.port, gateway.token(), 100, max_tokens=2)
    assert {one.status for one in asked} == {200}
    await asyncio.sleep(0.5)  # a completion that nobody waits for may be written 25 ms after the answer
    return asked


@pytest.mark.parametrize(
    "harm",
    [pytest.param(flip, marks=pytest.mark.short), version, header_byte, zeros, garbage, cut, tail],
    ids=lambda harm: harm.__name__,
)
async def test_damage_found_at_the_next_start(gateway: Start, count: Count, harm: Harm) -> None:
    one = gateway()
    await asyncio.to_thread(one.start)
    stores = one.postgres()
    send(stores, signal.SIGSTOP)
    try:
        asked = await records_waiting_in_the_spool(one)
        one.kill()
    finally:
        send(stores, signal.SIGCONT)
    damage(segment(one), harm)
    await asyncio.to_thread(one.start)
    await recovered(one)
    trail = await reconcile(one.rows, asked, patience_s=5)
    state = one.readiness()
    files, lost = one.metric("esclusa_audit_quarantined_files"), one.metric("esclusa_audit_lost_records")
    exit_status, named = await asyncio.to_thread(verdict, one)
    lost_records = missing_records(trail)
    count(requests=100, clean=trail.clean, lost_records=lost_records, named=named, verify_exit=exit_status)
    assert state[0] == 200
    assert state[1]["parts"]["quarantine"] == ("empty" if harm is tail else "holds_records")
    assert lost_records == named == lost
    assert exit_status == (4 if named else 0)
    assert files == (0 if harm is tail else 1)
    assert trail.outcomes.get("interrupted", 0) == 0
    assert bool(one.log_lines("audit spool is damaged")) == (harm is not tail)


@pytest.mark.parametrize("harm", [flip, zeros, garbage], ids=lambda harm: harm.__name__)
async def test_damage_under_the_running_gateway(gateway: Start, count: Count, harm: Harm) -> None:
    one = gateway()
    await asyncio.to_thread(one.start)
    stores = one.postgres()
    send(stores, signal.SIGSTOP)
    try:
        asked = await records_waiting_in_the_spool(one)
        damage(segment(one), harm)
    finally:
        send(stores, signal.SIGCONT)
    later = await burst(one.port, one.token(), 10, max_tokens=2)
    after = await reconcile(one.rows, later)
    trail = await reconcile(one.rows, asked, patience_s=5)
    exit_status, named = await asyncio.to_thread(verdict, one)
    lost_records = missing_records(trail)
    count(
        requests=110, clean=trail.clean + after.clean, lost_records=lost_records, named=named, verify_exit=exit_status
    )
    assert after.wrong == []
    # A batch that was read before the damage may still arrive: then nothing is lost, and nothing must be said.
    assert (lost_records, exit_status) == (named, 4 if named else 0)


async def test_the_folder_removed_under_the_running_gateway(gateway: Start, count: Count) -> None:
    one = gateway()
    await asyncio.to_thread(one.start)
    stores = one.postgres()
    asked = await burst(one.port, one.token(), 20, max_tokens=2)
    send(stores, signal.SIGSTOP)
    try:
        asked += await burst(one.port, one.token(), 20, max_tokens=2)
        shutil.rmtree(one.spool)
        asked += await burst(one.port, one.token(), 20, max_tokens=2)
    finally:
        send(stores, signal.SIGCONT)
    trail = await reconcile(one.rows, asked)
    restored = one.metric("esclusa_audit_spool_restored")
    exit_status, named = await asyncio.to_thread(verdict, one)
    count(requests=trail.ids, clean=trail.clean, lost=trail.lost, restored=restored, verify_exit=exit_status)
    assert trail.wrong == []
    assert (exit_status, named, restored) == (0, 0, 1)
