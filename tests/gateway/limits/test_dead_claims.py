"""What a process held when it died: released by the next start of the same gateway, and by nobody else."""

from __future__ import annotations

import os
import signal

from gateway.flow.values import LimitRule
from gateway.limits.local import LocalStore
from gateway.local.valkey import PrivateValkey
from tests.fakes.limit_claims import claim, rule, used
from tests.fakes.manual_clock import ManualClock
from tests.gateway.limits.conftest import MakeLimiter
from tests.gateway.limits.test_outage import until
from tests.gateway.limits.test_service import ask, hold

SLOTS = 8


def slots() -> LimitRule:
    return rule("slots", concurrent=SLOTS, window="day", tokens=10_000)


async def test_the_slots_of_a_dead_process_are_free_after_its_next_start(make_limiter: MakeLimiter) -> None:
    died = await make_limiter(holder="boot1")
    for _ in range(SLOTS):
        await hold(died, slots())
    assert not (await ask(died, slots())).allowed
    successor = await make_limiter(holder="boot2", dead_holders=["boot1"])
    assert all([(await ask(successor, slots())).allowed for _ in range(SLOTS)])


async def test_its_tokens_are_given_back_too(make_limiter: MakeLimiter) -> None:
    died = await make_limiter(holder="boot1")
    await hold(died, rule("day", window="day", tokens=10_000))
    successor = await make_limiter(holder="boot2", dead_holders=["boot1"])
    ((_, tally),) = await successor.usage([rule("day", window="day", tokens=10_000)])
    assert (tally.held_in, tally.held_out, tally.requests) == (0, 0, 0)


async def test_the_claims_of_living_replicas_stay_held(make_limiter: MakeLimiter) -> None:
    died, living = await make_limiter(holder="boot1"), await make_limiter(holder="boot10")
    await hold(died, slots())
    await hold(living, slots())
    successor = await make_limiter(holder="boot2", dead_holders=["boot1"])
    ((_, tally),) = await successor.usage([slots()])
    assert tally.in_flight == 1


async def test_the_store_in_memory_releases_all_claims_of_a_holder_and_no_others() -> None:
    store = LocalStore(clock=ManualClock(), prefix="t")
    for name in ("boot1.a", "boot1.b", "boot10.a"):
        store.reserve_now(claim(id=name), [slots()])
    assert await store.release("boot1") == 2
    ((_, tally),) = await store.read([slots()])
    assert tally.in_flight == 1


async def test_more_claims_than_one_scan_returns_are_all_released(make_limiter: MakeLimiter) -> None:
    died = await make_limiter(holder="boot1")
    for _ in range(1_500):
        await hold(died, rule("many", concurrent=2_000))
    successor = await make_limiter(holder="boot2", dead_holders=["boot1"])
    ((_, tally),) = await successor.usage([rule("many", concurrent=2_000)])
    assert tally.in_flight == 0


async def test_a_store_that_is_away_at_start_is_asked_when_it_is_back(
    make_limiter: MakeLimiter, own_valkey: PrivateValkey
) -> None:
    died = await make_limiter(own_valkey.url, holder="boot1")
    await hold(died, slots())
    assert own_valkey.pid is not None
    os.kill(own_valkey.pid, signal.SIGSTOP)
    try:
        successor = await make_limiter(own_valkey.url, patience_s=0.05, holder="boot2", dead_holders=["boot1"])
        assert successor.degraded
    finally:
        os.kill(own_valkey.pid, signal.SIGCONT)
    await until(lambda: not successor.degraded)
    ((_, tally),) = await successor.usage([slots()])
    assert tally.in_flight == 0


async def test_a_late_settlement_of_a_released_claim_still_books_what_was_used(make_limiter: MakeLimiter) -> None:
    limit = rule("day", window="day", tokens=10_000)
    thought_dead = await make_limiter(holder="boot1")
    reservation = await hold(thought_dead, limit)
    successor = await make_limiter(holder="boot2", dead_holders=["boot1"])
    await thought_dead.settle(reservation, used(10, 20), 0)
    ((_, tally),) = await successor.usage([limit])
    assert (tally.used_in, tally.used_out) == (10, 20)
