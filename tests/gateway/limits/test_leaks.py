"""A request that is cancelled or whose process dies leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from gateway.flow.values import LimitRule
from gateway.limits.claim import Tally
from gateway.limits.service import LimitService
from tests.fakes.limit_claims import CARD, asking, rule, used
from tests.gateway.limits.conftest import MakeLimiter

LIMIT = rule(window="month", tokens=10**9, cost_micro=10**9, concurrent=10_000)


async def tally(limiter: LimitService, limit: LimitRule) -> Tally:
    return (await limiter.usage([limit]))[0][1]


async def until(condition: object, *, within_s: float = 5.0) -> None:
    deadline = asyncio.get_running_loop().time() + within_s
    while not await condition():  # type: ignore[operator]
        assert asyncio.get_running_loop().time() < deadline, "it did not happen in time"
        await asyncio.sleep(0.02)


async def nothing_held(limiter: LimitService) -> bool:
    found = await tally(limiter, LIMIT)
    return (found.held_in, found.held_out, found.held_cost, found.in_flight) == (0, 0, 0, 0)


async def request(limiter: LimitService, running_s: float) -> None:
    """As the pipeline does it: settle in a shielded finalizer, whatever happened."""
    reservation = None
    try:
        verdict = await limiter.reserve([LIMIT], asking(), CARD)
        reservation = verdict.reservation
        await asyncio.sleep(running_s)
    finally:
        if reservation is not None:
            await asyncio.shield(limiter.settle(reservation, used(10, 3), 2))


async def test_requests_cancelled_at_random_moments_leave_nothing_held(make_limiter: MakeLimiter) -> None:
    limiter, chance = await make_limiter(), random.Random(7)
    tasks = [asyncio.create_task(request(limiter, chance.random() * 0.02)) for _ in range(300)]
    for task in tasks:
        await asyncio.sleep(chance.random() * 0.0002)
        if chance.random() < 0.7:
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await until(lambda: nothing_held(limiter))
    assert limiter.state()["in_flight"] == 0


async def test_a_reservation_cancelled_on_its_way_is_given_back(make_limiter: MakeLimiter) -> None:
    limiter = await make_limiter()
    task = asyncio.create_task(limiter.reserve([LIMIT], asking(), CARD))
    await asyncio.sleep(0)  # the command is on its way, the answer is not
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: nothing_held(limiter), within_s=2)


async def test_a_settlement_cancelled_on_its_way_is_still_booked(make_limiter: MakeLimiter) -> None:
    limiter = await make_limiter()
    verdict = await limiter.reserve([LIMIT], asking(), CARD)
    assert verdict.reservation is not None
    task = asyncio.create_task(limiter.settle(verdict.reservation, used(10, 3), 2))
    await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await until(lambda: nothing_held(limiter))
    assert (await tally(limiter, LIMIT)).used_out == 3


async def test_the_claims_of_a_dead_replica_are_swept_by_another(make_limiter: MakeLimiter) -> None:
    dead = await make_limiter(start=False, lease_s=0.3)
    await dead._store.open()
    for _ in range(50):
        assert (await dead.reserve([LIMIT], asking(), CARD)).allowed
    alive = await make_limiter(lease_s=0.3, sweep_s=0.05)
    assert (await tally(alive, LIMIT)).in_flight == 50
    await until(lambda: nothing_held(alive))
    assert await tally(alive, LIMIT) == Tally()
