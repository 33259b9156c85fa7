"""The key set manager against a real HTTP server that rotates, fails and misbehaves (threats T6, T7, T8)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.errors import GatewayError, Unauthenticated, Unavailable
from gateway.flow.context import RequestContext
from gateway.flow.values import Credential
from gateway.identity.service import IdentityService
from tests.fakes.issuer import JwksServer, TestIssuer
from tests.fakes.manual_clock import ManualClock

GARBAGE = ["500", "html", "redirect", "empty", "huge", "gzip"]


class Bench:
    """One service over one server, on a clock of the test's own."""

    def __init__(self, server: JwksServer, context: RequestContext, **settings: Any) -> None:
        self.server = server
        self.issuer = server.issuer
        self.clock = ManualClock()
        self.context = context
        self.service = IdentityService(
            self.issuer.settings(provider={"issuer": server.base, "allow_http": True}, **settings), clock=self.clock
        )
        self.keys = self.service._key_sets["corp"]

    async def ask(self, token: str) -> str:
        return (await self.service.authenticate(Credential("authorization", token), self.context)).subject

    async def refused(self, token: str) -> GatewayError:
        with pytest.raises(GatewayError) as refusal:
            await self.ask(token)
        return refusal.value


@pytest.fixture
async def server(issuer: TestIssuer) -> AsyncIterator[JwksServer]:
    async with JwksServer(issuer) as running:
        yield running


@pytest.fixture
async def bench(server: JwksServer, context: RequestContext) -> AsyncIterator[Bench]:
    ready = Bench(server, context)
    await ready.service.start()
    yield ready
    await ready.service.close()


async def test_discovery_leads_to_the_keys(bench: Bench) -> None:
    assert await bench.ask(bench.issuer.token()) == "u-1042"
    assert bench.server.paths == ["/.well-known/openid-configuration", "/jwks"]


async def test_unknown_kid_flood_costs_one_fetch(bench: Bench) -> None:
    before = bench.server.fetches
    tokens = [bench.issuer.token("k1", header={"kid": f"random-{i}"}) for i in range(200)]
    limit = asyncio.Semaphore(50)

    async def attempt(number: int) -> str:
        async with limit:
            return (await bench.refused(tokens[number % 200])).code

    codes = await asyncio.gather(*(attempt(i) for i in range(2000)))
    assert set(codes) == {"unknown_key"}
    assert bench.server.fetches - before == 1


async def test_next_unknown_kid_may_fetch_after_the_cooldown(bench: Bench) -> None:
    await bench.refused(bench.issuer.token(header={"kid": "a"}))
    bench.clock.advance(30.1)
    before = bench.server.fetches
    await bench.refused(bench.issuer.token(header={"kid": "b"}))
    assert bench.server.fetches == before + 1


async def test_negative_kid_is_not_asked_again_after_the_cooldown(bench: Bench) -> None:
    await bench.refused(bench.issuer.token(header={"kid": "a"}))
    bench.clock.advance(60)
    before = bench.server.fetches
    await bench.refused(bench.issuer.token(header={"kid": "a"}))
    assert bench.server.fetches == before


async def test_negative_kid_dies_with_a_change_of_the_key_set(bench: Bench) -> None:
    await bench.refused(bench.issuer.token(header={"kid": "new"}))
    bench.issuer.add("new", "RS256", 3)
    await bench.keys.refresh("background")
    assert await bench.ask(bench.issuer.token("new")) == "u-1042"


async def test_rotated_in_key_works_within_one_forced_refresh(bench: Bench) -> None:
    bench.issuer.add("k2", "ES256", 2)
    before = bench.server.fetches
    assert await bench.ask(bench.issuer.token("k2")) == "u-1042"
    assert bench.server.fetches == before + 1


async def test_waiters_share_one_forced_refresh(bench: Bench) -> None:
    bench.issuer.add("k2", "ES256", 2)
    before = bench.server.fetches
    subjects = await asyncio.gather(*(bench.ask(bench.issuer.token("k2", jti=str(i))) for i in range(40)))
    assert (set(subjects), bench.server.fetches - before) == ({"u-1042"}, 1)


async def test_removed_key_fails_after_the_next_refresh_even_from_the_cache(bench: Bench) -> None:
    token = bench.issuer.token("e1")
    await bench.ask(token)
    bench.issuer.remove("e1")
    await bench.keys.refresh("background")
    assert (await bench.refused(token)).code == "unknown_key"


async def test_background_refresh_is_due_before_the_set_is_old(bench: Bench) -> None:
    assert 0.7 * 600 <= bench.keys.due_in_s() <= 0.8 * 600


async def test_cache_control_shortens_the_interval(server: JwksServer, context: RequestContext) -> None:
    server.cache_control = "public, max-age=120"
    bench = Bench(server, context)
    await bench.keys.refresh("start")
    assert 0.7 * 120 <= bench.keys.due_in_s() <= 0.8 * 120


@pytest.mark.parametrize(("header", "ttl_s"), [("max-age=86400", 600), ("max-age=1", 60), ("no-store", 60)])
async def test_cache_control_stays_inside_its_bounds(
    server: JwksServer, context: RequestContext, header: str, ttl_s: int
) -> None:
    server.cache_control = header
    bench = Bench(server, context)
    await bench.keys.refresh("start")
    assert 0.7 * ttl_s <= bench.keys.due_in_s() <= 0.8 * ttl_s


@pytest.mark.parametrize("fault", GARBAGE)
async def test_garbage_keeps_the_last_good_set(bench: Bench, fault: str) -> None:
    bench.server.fault = fault
    assert await bench.keys.refresh("background") is False
    assert await bench.ask(bench.issuer.token()) == "u-1042"


@pytest.mark.parametrize("fault", GARBAGE)
async def test_garbage_from_the_first_moment_is_503(server: JwksServer, context: RequestContext, fault: str) -> None:
    server.fault = fault
    bench = Bench(server, context)
    refusal = await bench.refused(bench.issuer.token())
    assert (refusal.status, refusal.code, refusal.headers["retry-after"]) == (503, "idp_unavailable", "5")


async def test_redirect_is_not_followed(server: JwksServer, context: RequestContext) -> None:
    server.fault = "redirect"
    await Bench(server, context).keys.refresh("start")
    assert "/elsewhere" not in server.paths


async def test_huge_answer_is_cut_off_early(server: JwksServer, context: RequestContext) -> None:
    server.fault = "huge"
    bench = Bench(server, context)
    started = time.monotonic()
    assert await bench.keys.refresh("start") is False
    assert time.monotonic() - started < 2.0
    assert "larger than" in (bench.keys.status().last_error or "")


async def test_slow_provider_costs_the_configured_timeout(server: JwksServer, context: RequestContext) -> None:
    server.fault = "slow"
    bench = Bench(server, context, jwks_timeout_s=0.2)
    started = time.monotonic()
    assert await bench.keys.refresh("start") is False
    assert time.monotonic() - started < 1.5


async def test_provider_that_is_down_leaves_known_keys_working(bench: Bench) -> None:
    await bench.server.stop()
    assert await bench.keys.refresh("background") is False
    assert await bench.ask(bench.issuer.token("p1")) == "u-1042"


async def test_unknown_kid_while_the_provider_is_down_is_503_not_401(bench: Bench) -> None:
    await bench.server.stop()
    refusal = await bench.refused(bench.issuer.token(header={"kid": "perhaps-new"}))
    assert (type(refusal), refusal.code) == (Unavailable, "idp_unavailable")


async def test_flood_while_the_provider_is_down_costs_one_attempt(bench: Bench) -> None:
    await bench.server.stop()
    for number in range(100):
        await bench.refused(bench.issuer.token(header={"kid": str(number)}))
    assert bench.keys.status().fetch_failures == 1


async def test_stale_keys_serve_for_a_day_and_no_longer(bench: Bench) -> None:
    await bench.server.stop()
    bench.clock.advance(86_000)
    await bench.keys.refresh("background")
    fresh = int(bench.clock.now().timestamp())
    assert await bench.ask(bench.issuer.token(iat=fresh, exp=fresh + 900)) == "u-1042"
    bench.clock.advance(500)
    refusal = await bench.refused(bench.issuer.token(iat=fresh, exp=fresh + 900, jti="other"))
    assert refusal.code == "idp_unavailable"


async def test_provider_that_comes_back_is_used_again(server: JwksServer, context: RequestContext) -> None:
    server.fault = "500"
    bench = Bench(server, context)
    await bench.refused(bench.issuer.token())
    server.fault = None
    bench.clock.advance(2)
    assert await bench.ask(bench.issuer.token()) == "u-1042"


async def test_failures_back_off_up_to_a_minute(server: JwksServer, context: RequestContext) -> None:
    server.fault = "500"
    bench = Bench(server, context)
    waits = []
    for _ in range(9):
        await bench.keys.refresh("background")
        waits.append(bench.keys.due_in_s())
    assert waits[0] <= 1.25
    assert 45.0 <= waits[-1] <= 75.0


async def test_status_tells_age_staleness_and_reasons(bench: Bench) -> None:
    await bench.refused(bench.issuer.token(header={"kid": "x"}))
    bench.clock.advance(700)
    status = bench.keys.status()
    assert (status.age_s, status.stale_s) == (700.0, 100.0)
    assert status.fetches == {"start": 1, "unknown_kid": 1}


async def test_ready_only_once_every_provider_had_a_set(server: JwksServer, context: RequestContext) -> None:
    bench = Bench(server, context)
    assert not bench.service.ready
    await bench.keys.refresh("start")
    await server.stop()
    bench.clock.advance(80_000)
    assert bench.service.ready


async def test_discovery_document_of_another_issuer_is_refused(server: JwksServer, context: RequestContext) -> None:
    bench = Bench(server, context)
    server.issuer.issuer = "https://idp.test/realms/evil"
    assert await bench.keys.refresh("start") is False
    assert "another issuer" in (bench.keys.status().last_error or "")


async def test_keys_on_a_foreign_host_are_not_fetched(server: JwksServer, context: RequestContext) -> None:
    bench = Bench(server, context)
    server.base = f"http://localhost:{server.port}"
    assert await bench.keys.refresh("start") is False
    assert server.fetches == 0


async def test_background_task_refreshes_by_itself(server: JwksServer, context: RequestContext) -> None:
    from gateway.flow.context import SystemClock

    settings = server.issuer.settings(
        provider={"issuer": server.base, "allow_http": True}, jwks_refresh_s=0.2, jwks_timeout_s=1.0
    )
    service = IdentityService(settings, clock=SystemClock())
    await service.start()
    await asyncio.sleep(0.7)
    await service.close()
    assert server.fetches >= 3


async def test_key_without_kid_is_unknown_unless_the_provider_allows_it(bench: Bench) -> None:
    with pytest.raises(Unauthenticated) as refused:
        await bench.ask(bench.issuer.token(header={"kid": ...}))
    assert refused.value.code == "unknown_key"


async def test_single_key_provider_may_leave_out_the_kid(context: RequestContext) -> None:
    issuer = TestIssuer.with_keys(k1="ES256")
    service = IdentityService(
        issuer.settings(provider={"single_key_ok": True}), clock=ManualClock(), key_sources={"corp": issuer}
    )
    token = issuer.token(header={"kid": ...})
    assert (await service.authenticate(Credential("authorization", token), context)).subject == "u-1042"
