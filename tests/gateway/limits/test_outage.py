"""The store stopped, frozen or slow: little time lost, limits still limit, nothing forgotten (T20)."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from gateway.errors import Unavailable
from gateway.flow.values import LimitRule, LimitVerdict, Reservation
from gateway.limits.claim import Tally
from gateway.limits.denial import denial
from gateway.limits.headers import ratelimit_headers
from gateway.limits.service import LimitService
from gateway.local.valkey import PrivateValkey
from tests.fakes.hang_guard import hang_guard
from tests.fakes.limit_claims import CARD, asking, rule, used
from tests.fakes.slow_proxy import SlowProxy
from tests.gateway.limits.conftest import MakeLimiter

PATIENCE_S = 0.05
WIDE = rule("wide", window="day", tokens=10**9, concurrent=10_000)


@pytest.fixture
async def proxy(own_valkey: PrivateValkey) -> AsyncIterator[SlowProxy]:
    assert own_valkey.port is not None
    made = SlowProxy("127.0.0.1", own_valkey.port)
    yield made
    await made.stop()


async def through(proxy: SlowProxy, server: PrivateValkey) -> str:
    password = urlsplit(server.url).password
    return f"redis://:{password}@127.0.0.1:{await proxy.start()}/0"


async def until(condition: Callable[[], bool], *, within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


async def ask(limiter: LimitService, limit: LimitRule = WIDE) -> LimitVerdict:
    return await limiter.reserve([limit], asking(), CARD)


async def hold(limiter: LimitService, limit: LimitRule = WIDE) -> Reservation:
    verdict = await ask(limiter, limit)
    assert verdict.reservation is not None
    return verdict.reservation


async def serve(limiter: LimitService, requests: int = 400) -> None:
    """Many requests, one after the other."""
    for _ in range(requests):
        reservation = await hold(limiter)
        await limiter.settle(reservation, used(10, 5), 0)


async def freeze(server: PrivateValkey, proxy: SlowProxy) -> None:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)


async def slow(server: PrivateValkey, proxy: SlowProxy) -> None:
    proxy.delay_s = 2.0


async def stop(server: PrivateValkey, proxy: SlowProxy) -> None:
    server.stop()


@pytest.fixture(autouse=True)
def thaw(own_valkey: PrivateValkey) -> object:
    yield
    if own_valkey.running and own_valkey.pid is not None:
        os.kill(own_valkey.pid, signal.SIGCONT)


TROUBLES = [freeze, slow, stop]
Trouble = Callable[[PrivateValkey, SlowProxy], Awaitable[None]]


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.__name__)
async def test_requests_do_not_wait_for_a_store_in_trouble_and_it_is_reported(
    make_limiter: MakeLimiter, own_valkey: PrivateValkey, proxy: SlowProxy, trouble: Trouble
) -> None:
    told: list[bool] = []
    limiter = await make_limiter(await through(proxy, own_valkey), patience_s=PATIENCE_S, on_degraded=told.append)
    await trouble(own_valkey, proxy)
    async with hang_guard():  # each request that waited for the slow store would take 2 s: 800 s in all
        await serve(limiter)
    assert limiter.degraded
    assert limiter.state()["state"] == "degraded"
    assert told[-1] is True
    reservation = await hold(limiter)
    assert (reservation.degraded, reservation.store) == (True, "local")
    assert ratelimit_headers(reservation)["x-esclusa-limits"] == "degraded"


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.__name__)
@pytest.mark.parametrize("policy", ["local", "allow"])
async def test_without_the_store_each_replica_hands_out_its_share_and_no_more(
    make_limiter: MakeLimiter, own_valkey: PrivateValkey, proxy: SlowProxy, trouble: Trouble, policy: str
) -> None:
    limiter = await make_limiter(await through(proxy, own_valkey), patience_s=PATIENCE_S, replicas=4)
    await trouble(own_valkey, proxy)
    limit = rule("requests", window="day", requests=20, on_store_error=policy)
    verdicts = [await ask(limiter, limit) for _ in range(30)]
    assert sum(verdict.allowed for verdict in verdicts) == 5
    assert verdicts[-1].kind == "budget"


async def test_a_budget_without_the_store_is_the_replicas_share(
    make_limiter: MakeLimiter, own_valkey: PrivateValkey
) -> None:
    limiter = await make_limiter(own_valkey.url, replicas=4)
    own_valkey.stop()
    await until(lambda: limiter.degraded)
    reservation = await hold(limiter, rule("month", window="month", tokens=80))
    assert (reservation.granted_output_tokens, reservation.clamped_by) == (10, "month")


async def test_a_budget_that_was_spent_stays_spent_while_the_store_is_away(
    make_limiter: MakeLimiter, own_valkey: PrivateValkey
) -> None:
    limiter, limit = await make_limiter(own_valkey.url), rule("month", window="month", tokens=30)
    await limiter.settle(await hold(limiter, limit), used(10, 20), 0)
    await ask(limiter, limit)
    own_valkey.stop()
    await until(lambda: limiter.degraded)
    await asyncio.sleep(2.1)  # longer than a full window is believed while the store can be asked
    verdict = limiter.precheck([limit])
    assert verdict is not None
    assert (verdict.kind, verdict.degraded) == ("budget", True)


async def test_money_that_was_spent_stays_spent_while_the_store_is_away_but_for_what_is_free(
    make_limiter: MakeLimiter, own_valkey: PrivateValkey
) -> None:
    limiter, limit = await make_limiter(own_valkey.url), rule("month", window="month", cost_micro=5)
    await limiter.settle(await hold(limiter, limit), used(10, 20), 9)
    await ask(limiter, limit)
    own_valkey.stop()
    await until(lambda: limiter.degraded)
    verdict = await ask(limiter, limit)
    assert (verdict.allowed, verdict.kind, verdict.degraded) == (False, "budget", True)
    free = replace(CARD, price_in_micro=0, price_out_micro=0)
    assert (await limiter.reserve([limit], asking(10, 20), free)).allowed


async def test_a_policy_may_refuse_while_the_store_is_away(
    make_limiter: MakeLimiter, own_valkey: PrivateValkey
) -> None:
    limiter = await make_limiter(own_valkey.url)
    own_valkey.stop()
    await until(lambda: limiter.degraded)
    error = denial(await ask(limiter, rule("strict", requests=5, on_store_error="deny")))
    assert isinstance(error, Unavailable)
    assert (error.status, error.code) == (503, "limits_unavailable")
    assert error.headers == {"retry-after": "5", "x-esclusa-limits": "degraded"}


async def test_the_lenient_policy_raises_one_alarm_for_an_outage(
    make_limiter: MakeLimiter, own_valkey: PrivateValkey
) -> None:
    alarms: list[str] = []
    limiter = await make_limiter(own_valkey.url, on_alarm=lambda rule: alarms.append(rule.id))
    own_valkey.stop()
    await until(lambda: limiter.degraded)
    for _ in range(3):
        await ask(limiter, rule("lenient", requests=50, on_store_error="allow"))
    assert alarms == ["lenient"]


@pytest.mark.parametrize("trouble", [freeze, slow], ids=lambda trouble: trouble.__name__)
async def test_after_the_trouble_everything_is_booked_once_and_nothing_is_held(
    make_limiter: MakeLimiter, own_valkey: PrivateValkey, proxy: SlowProxy, trouble: Trouble
) -> None:
    limiter = await make_limiter(await through(proxy, own_valkey), patience_s=PATIENCE_S, lease_s=1, sweep_s=0.2)
    early = await hold(limiter)
    await trouble(own_valkey, proxy)
    for _ in range(20):
        await limiter.settle(await hold(limiter), used(10, 5), 1)
    await limiter.settle(early, used(10, 20), 1)
    assert limiter.degraded
    await asyncio.sleep(0.3)
    proxy.delay_s = 0.0
    if trouble is freeze:
        os.kill(own_valkey.pid or 0, signal.SIGCONT)
    await until(lambda: not limiter.degraded and limiter.state()["pending_settlements"] == 0)
    deadline = time.monotonic() + 10
    while (found := (await limiter.usage([WIDE]))[0][1]).held_out or found.in_flight:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    assert found == Tally(used_in=210, used_out=120, used_cost=21)


async def test_a_restarted_store_is_used_again(
    make_limiter: MakeLimiter, own_valkey: PrivateValkey, proxy: SlowProxy
) -> None:
    told: list[bool] = []
    limiter = await make_limiter(await through(proxy, own_valkey), on_degraded=told.append)
    own_valkey.stop()
    await until(lambda: limiter.degraded)
    own_valkey.start()
    assert own_valkey.port is not None
    proxy.retarget(own_valkey.port)
    await until(lambda: not limiter.degraded)
    assert (await hold(limiter)).store == "valkey"
    assert told == [True, False]


async def test_a_gateway_that_starts_without_its_store_is_degraded_and_recovers(
    make_limiter: MakeLimiter, own_valkey: PrivateValkey, proxy: SlowProxy
) -> None:
    url = await through(proxy, own_valkey)
    own_valkey.stop()
    limiter = await make_limiter(url)
    assert limiter.degraded
    assert (await hold(limiter)).store == "local"
    own_valkey.start()
    proxy.retarget(own_valkey.port or 0)
    await until(lambda: not limiter.degraded)


async def test_a_dropped_connection_fails_over_at_once_and_comes_back(
    make_limiter: MakeLimiter, own_valkey: PrivateValkey, proxy: SlowProxy
) -> None:
    limiter = await make_limiter(await through(proxy, own_valkey), patience_s=PATIENCE_S)
    await hold(limiter)
    proxy.cut()
    await until(lambda: limiter.degraded)
    assert (await hold(limiter)).store == "local"
    await until(lambda: not limiter.degraded)


async def test_a_request_whose_reservation_came_too_late_is_counted_once(
    make_limiter: MakeLimiter, own_valkey: PrivateValkey, proxy: SlowProxy
) -> None:
    """The store granted it, its answer was late, the local share granted it again: one request, its tokens once."""
    limit = rule("day", window="day", requests=100, tokens=10_000)
    limiter = await make_limiter(await through(proxy, own_valkey), patience_s=PATIENCE_S)
    proxy.delay_s = 0.5
    reservation = await hold(limiter, limit)
    assert reservation.store == "local"
    proxy.delay_s = 0.0
    await asyncio.sleep(1.0)  # what gives back the unseen claim is sent before the request ends
    await limiter.settle(reservation, used(10, 5), 0)
    truth = await make_limiter(own_valkey.url)

    async def counted() -> Tally:
        ((_, tally),) = await truth.usage([limit])
        return tally

    deadline = time.monotonic() + 30
    while (found := await counted()) != Tally(requests=1, used_in=10, used_out=5):
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.05)


async def test_a_reservation_that_came_too_late_and_was_then_refused_is_not_counted(
    make_limiter: MakeLimiter, own_valkey: PrivateValkey, proxy: SlowProxy
) -> None:
    limit = rule("day", window="day", requests=100, tokens=10_000, on_store_error="deny")
    limiter = await make_limiter(await through(proxy, own_valkey), patience_s=PATIENCE_S)
    proxy.delay_s = 0.5
    assert (await ask(limiter, limit)).kind == "store"
    proxy.delay_s = 0.0
    truth = await make_limiter(own_valkey.url)
    deadline = time.monotonic() + 30
    while True:
        ((_, tally),) = await truth.usage([limit])
        if tally == Tally():
            break
        assert time.monotonic() < deadline, tally
        await asyncio.sleep(0.05)
