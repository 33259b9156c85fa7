"""Gateway and stores killed or frozen under load: whoever got an id has exactly one intent and one completion."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from tests.chaos.conftest import FULL, Count, Start
from tests.fakes.gateway_process import GatewayProcess, send
from tests.fakes.load import Asked, Trail, mixed, reconcile

KILLS = 5 if FULL else 1


async def under_load(gateway: GatewayProcess, fault: Any, *, before_s: float = 2.0) -> list[Asked]:
    """Mixed load; after a while the fault, and on until it is over."""
    stop = asyncio.Event()
    load = asyncio.create_task(mixed(gateway.port, gateway.token(), stop))
    await asyncio.sleep(before_s)
    try:
        await fault()
    finally:
        stop.set()
    return await load


def intact(gateway: GatewayProcess, trail: Trail) -> None:
    assert trail.wrong == []
    assert gateway.stop() == 0
    verified = gateway.verify()
    assert verified.returncode == 0, verified.stdout


@pytest.mark.short
async def test_kill_minus_nine_of_the_gateway(gateway: Start, count: Count) -> None:
    one = gateway()
    await asyncio.to_thread(one.start)
    asked: list[Asked] = []
    ready: list[float] = []

    async def kill() -> None:
        one.kill()

    for _ in range(KILLS):
        asked += await under_load(one, kill)
        ready.append(await asyncio.to_thread(one.start))
    trail = await reconcile(one.rows, asked)
    count(
        kills=KILLS,
        requests=trail.ids,
        clean=trail.clean,
        lost=trail.lost,
        interrupted=trail.outcomes.get("interrupted", 0),
        ready_s=round(max(ready), 1),
    )
    assert trail.ids > 0
    await asyncio.to_thread(intact, one, trail)


@pytest.mark.parametrize("mode", ["standard", "strict"])
@pytest.mark.parametrize("store", ["postgres", "valkey"])
async def test_a_store_that_is_killed_comes_back_and_nobody_is_refused(
    gateway: Start, count: Count, store: str, mode: str
) -> None:
    one = gateway(audit={"mode": mode})
    await asyncio.to_thread(one.start)

    async def kill() -> None:
        send(getattr(one, store)()[:1], signal.SIGKILL)
        await asyncio.sleep(6)

    asked = await under_load(one, kill)
    trail = await reconcile(one.rows, asked, patience_s=60)
    refused = sum(1 for each in asked if each.status >= 500)
    count(requests=trail.ids, clean=trail.clean, lost=trail.lost, refused=refused)
    assert refused == 0
    await asyncio.to_thread(intact, one, trail)


@pytest.mark.parametrize("store", ["postgres", "valkey"])
async def test_a_store_that_is_frozen_is_waited_for_by_nobody(gateway: Start, count: Count, store: str) -> None:
    one = gateway()
    await asyncio.to_thread(one.start)

    async def freeze() -> None:
        processes = getattr(one, store)()
        send(processes, signal.SIGSTOP)
        try:
            await asyncio.sleep(8)
        finally:
            send(processes, signal.SIGCONT)
        await asyncio.sleep(2)

    asked = await under_load(one, freeze)
    trail = await reconcile(one.rows, asked, patience_s=60)
    refused = sum(1 for each in asked if each.status >= 500)
    count(requests=trail.ids, clean=trail.clean, lost=trail.lost, refused=refused)
    assert refused == 0
    await asyncio.to_thread(intact, one, trail)
