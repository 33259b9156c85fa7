"""The key set manager against a real HTTP server that rotates, fails and misbehaves (threats T6, T7, T8)."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from prometheus_client import CollectorRegistry

from gateway.errors import ConfigError, GatewayError, Unauthenticated, Unavailable
from gateway.flow.context import RequestContext
from gateway.flow.values import Credential
from gateway.identity.metrics import IdentityCollector
from gateway.identity.service import IdentityService
from tests.fakes.hang_guard import hang_guard
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
    async with hang_guard():
        assert await bench.keys.refresh("start") is False
    assert "larger than" in (bench.keys.status().last_error or "")


async def test_slow_provider_costs_the_configured_timeout(server: JwksServer, context: RequestContext) -> None:
    server.fault = "slow"
    bench = Bench(server, context, jwks_timeout_s=0.2)
    async with hang_guard():
        assert await bench.keys.refresh("start") is False


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


@pytest.mark.parametrize(
    "uri",
    [
        "http://[::1",
        "file:///etc/passwd",
        "http://127.0.0.1@evil.test/k",
        "http://evil.test\\@127.0.0.1/k",
        "//x",
        " ",
        5,
    ],
)
async def test_strange_jwks_uri_is_refused(server: JwksServer, context: RequestContext, uri: Any) -> None:
    server.jwks_uri = uri
    bench = Bench(server, context)
    assert await bench.keys.refresh("start") is False
    assert server.fetches == 0


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


@pytest.fixture
async def tls_server(issuer: TestIssuer, tmp_path: Path) -> AsyncIterator[JwksServer]:
    async with JwksServer(issuer, tls=private_tls(tmp_path)) as running:
        yield running


def private_tls(folder: Path) -> ssl.SSLContext:
    """A self-signed certificate for 127.0.0.1, as a private CA would give."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "idp.test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    (folder / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    return context


async def test_provider_behind_a_private_ca_is_trusted_by_its_file(
    tls_server: JwksServer, context: RequestContext, tmp_path: Path
) -> None:
    trusted = Bench(tls_server, context, jwks_ca_file=tmp_path / "ca.pem")
    await trusted.service.start()
    assert await trusted.ask(trusted.issuer.token()) == "u-1042"
    await trusted.service.close()


async def test_certificate_of_nobody_is_refused(tls_server: JwksServer, context: RequestContext) -> None:
    stranger = Bench(tls_server, context)
    assert await stranger.keys.refresh("start") is False
    assert "transport" in (stranger.keys.status().last_error or "")


@pytest.mark.parametrize("settings", [{"jwks_ca_file": Path("/nowhere/ca.pem")}, {"jwks_proxy": "gopher://x"}])
async def test_roots_or_proxy_that_cannot_be_used_end_the_start(
    server: JwksServer, context: RequestContext, settings: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="key sets cannot be fetched"):
        await Bench(server, context, **settings).service.start()


async def test_metrics_name_provider_reason_and_code(bench: Bench) -> None:
    await bench.refused(bench.issuer.token(aud="x"))
    registry = CollectorRegistry()
    registry.register(IdentityCollector(bench.service.status))
    read = registry.get_sample_value
    assert read("esclusa_identity_key_fetches_total", {"provider": "corp", "reason": "start"}) == 1
    assert read("esclusa_identity_refusals_total", {"code": "wrong_audience"}) == 1
    assert read("esclusa_identity_keys", {"provider": "corp"}) == 4


async def test_key_set_can_come_from_a_file(issuer: TestIssuer, context: RequestContext, tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps(issuer.jwks()))
    settings = issuer.settings(provider={"jwks_file": path, "discovery": False})
    service = IdentityService(settings, clock=ManualClock())
    await service.start()
    assert (await service.authenticate(Credential("authorization", issuer.token()), context)).subject == "u-1042"
    await service.close()


async def test_missing_key_file_is_503(issuer: TestIssuer, context: RequestContext, tmp_path: Path) -> None:
    settings = issuer.settings(provider={"jwks_file": tmp_path / "absent.json", "discovery": False})
    service = IdentityService(settings, clock=ManualClock())
    with pytest.raises(Unavailable):
        await service.authenticate(Credential("authorization", issuer.token()), context)
