"""Identity while the database is stopped or frozen, restarts included: what was last known serves, for a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.engine import make_url

from gateway.errors import GatewayError
from gateway.flow.context import RequestContext, SystemClock, SystemIds
from gateway.flow.values import Credential, Principal
from gateway.identity.accounts import AccountChange, Caller, NewKey
from gateway.identity.local_copies import IdentityCopies
from gateway.identity.revocations import SavedRevocations
from gateway.identity.revoking import RevocationRequest
from gateway.local.postgres import PrivatePostgres
from gateway.settings import IdentitySettings
from gateway.storage.migrate import upgrade
from gateway.storage.postgres import make_engine
from gateway.wiring.identity import account_service, identity_parts, revocation_service
from tests.fakes.issuer import TestIssuer
from tests.fakes.slow_proxy import SlowProxy
from tests.gateway.identity.conftest import eventually

PEPPER = "pimienta-0123456789-0123456789-abc"
FROZEN_S = 3600.0
HANG_S = 60.0
"""Far above what is needed, far below what waiting for the database in every request would take."""


@pytest.fixture(scope="module")
def spare_postgres(store_dir: Path) -> Iterator[PrivatePostgres]:
    """A server behind which the tests of this file may pull the plug."""
    server = PrivatePostgres(store_dir / "identity-spare", options={"fsync": "off", "max_connections": "60"})
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def proxy(spare_postgres: PrivatePostgres) -> AsyncIterator[SlowProxy]:
    """What gateways connect to; the server itself is never touched."""
    await upgrade(spare_postgres.url)
    there = make_url(spare_postgres.url)
    made = SlowProxy(there.host or "127.0.0.1", there.port or 5432)
    yield made
    await made.stop()


class Gateway:
    """One life of a replica: identity over a database that can be taken away, with copies in a folder."""

    def __init__(self, url: str, settings: IdentitySettings, issuer: TestIssuer, folder: Path) -> None:
        clock, ids = SystemClock(), SystemIds()
        self.engine = make_engine(url, pool_size=5, statement_timeout_s=None, connect_timeout_s=2.0)
        copies = IdentityCopies(folder, settings)
        parts = identity_parts(self.engine, settings, clock, copies=copies, key_sources={"corp": issuer}, listen=False)
        self.revocations, self.identity = parts.revocations, parts.service
        self.accounts, self.revoking = account_service(parts, ids), revocation_service(parts, ids)
        self.context = RequestContext(ids.uuid7(), clock.now(), clock.monotonic_s(), "/v1/chat/completions")
        owner = Principal("acme", issuer.issuer, f"owner-{ids.uuid7()}", roles=frozenset({"analyst"}))
        self.owner = Caller(owner, self.context)

    async def ask(self, credential: str) -> Principal:
        return await self.identity.authenticate(Credential("authorization", credential), self.context)

    async def code(self, credential: str) -> str:
        with pytest.raises(GatewayError) as refused:
            await self.ask(credential)
        return refused.value.code

    async def account(self, *roles: str) -> str:
        asked = AccountChange(frozenset(roles or ("analyst",)), None, None, disabled=False)
        return (await self.accounts.create(self.owner, f"a-{SystemIds().uuid7()}", asked)).id

    async def key(self, account: str) -> tuple[str, str]:
        """(id, text)"""
        issued = await self.accounts.issue(self.owner, UUID(account), NewKey("ci", None, None, timedelta(days=1)))
        assert issued.text is not None
        return issued.record.key_id, issued.text


Life = Callable[..., Any]


@pytest.fixture
async def lives(
    spare_postgres: PrivatePostgres, proxy: SlowProxy, issuer: TestIssuer, tmp_path: Path
) -> AsyncIterator[Life]:
    """Starts a replica behind the proxy; two in a row are one that restarted, because they share their folder."""
    url = make_url(spare_postgres.url).set(host="127.0.0.1", port=await proxy.start())
    base: dict[str, Any] = {"api_key_pepper": PEPPER, "api_key_cache_ttl_s": 0.0, "provider": {"tenant": "acme"}}
    async with AsyncExitStack() as stack:

        async def start(**settings: Any) -> Gateway:
            configured = issuer.settings(**{**base, **settings})
            gateway = Gateway(url.render_as_string(hide_password=False), configured, issuer, tmp_path / "copies")
            stack.push_async_callback(gateway.engine.dispose)
            await gateway.identity.start()
            stack.push_async_callback(gateway.identity.close)
            return gateway

        yield start
        proxy.delay_s = 0.0


def unplug(proxy: SlowProxy) -> None:
    proxy.retarget(1)
    proxy.cut()


def plug_in(proxy: SlowProxy, server: PrivatePostgres) -> None:
    proxy.retarget(make_url(server.url).port or 5432)


async def revoke(gateway: Gateway, issuer: TestIssuer, subject: str) -> None:
    who = Caller(Principal("acme", issuer.issuer, "olga"), gateway.context)
    await gateway.revoking.revoke(who, RevocationRequest("subject", issuer.issuer, subject, None, None, "left"))


# -------------------------------------------------------------------------------------------- revocations


async def test_a_replica_that_restarts_without_the_database_serves_by_its_last_list(
    lives: Life, proxy: SlowProxy, issuer: TestIssuer
) -> None:
    first = await lives()
    await revoke(first, issuer, "u-gone")
    unplug(proxy)
    second = await lives()
    assert (second.identity.ready, second.identity.state) == (True, "degraded")
    assert (await second.ask(issuer.token())).subject == "u-1042"
    assert await second.code(issuer.token(sub="u-gone")) == "token_revoked"


async def test_a_replica_without_any_list_is_not_ready_and_lets_nobody_in(
    lives: Life, proxy: SlowProxy, issuer: TestIssuer
) -> None:
    unplug(proxy)
    gateway = await lives()
    assert (gateway.identity.ready, gateway.identity.state) == (False, "no_revocations")
    assert await gateway.code(issuer.token()) == "idp_unavailable"


async def test_a_list_that_is_older_than_the_settings_allow_lets_nobody_in(
    lives: Life, proxy: SlowProxy, issuer: TestIssuer, tmp_path: Path
) -> None:
    copies = IdentityCopies(tmp_path / "copies", issuer.settings(api_key_pepper=PEPPER))
    copies.save_revocations(SavedRevocations(datetime.now(UTC) - timedelta(seconds=3000), ()))
    unplug(proxy)
    assert await (await lives(revocation_max_stale_s=2900)).code(issuer.token()) == "idp_unavailable"
    assert (await (await lives(revocation_max_stale_s=86_400)).ask(issuer.token())).subject == "u-1042"


@pytest.mark.parametrize("pepper", [PEPPER, None])
async def test_a_list_that_somebody_shortened_is_not_used(
    lives: Life, proxy: SlowProxy, issuer: TestIssuer, tmp_path: Path, pepper: str | None
) -> None:
    await revoke(await lives(api_key_pepper=pepper), issuer, "u-gone")
    path = tmp_path / "copies" / "revocations.json"
    assert path.stat().st_mode & 0o077 == 0
    outer = json.loads(path.read_text())
    outer["body"] = json.dumps({**json.loads(outer["body"]), "entries": []})
    path.write_text(json.dumps(outer))
    unplug(proxy)
    gateway = await lives(api_key_pepper=pepper)
    assert await gateway.code(issuer.token(sub="u-gone")) == "idp_unavailable"


async def test_a_copy_with_a_pepper_cannot_be_made_without_it(
    lives: Life, proxy: SlowProxy, issuer: TestIssuer, tmp_path: Path
) -> None:
    forged = IdentityCopies(tmp_path / "copies", issuer.settings(api_key_pepper="x" * 40))
    forged.save_revocations(SavedRevocations(datetime.now(UTC), ()))
    unplug(proxy)
    assert (await lives()).identity.state == "no_revocations"


async def test_the_list_is_fresh_again_when_the_database_is_back(
    lives: Life, proxy: SlowProxy, spare_postgres: PrivatePostgres, issuer: TestIssuer
) -> None:
    await lives()
    unplug(proxy)
    gateway = await lives()
    plug_in(proxy, spare_postgres)
    assert await gateway.revocations.refresh()
    assert gateway.identity.state == "ready"


# ------------------------------------------------------------------------------------------------ API keys


async def stop(proxy: SlowProxy) -> None:
    unplug(proxy)


async def freeze(proxy: SlowProxy) -> None:
    proxy.delay_s = FROZEN_S


@pytest.mark.parametrize("trouble", [stop, freeze])
async def test_a_key_that_was_verified_goes_on_and_nobody_waits_in_turn(
    lives: Life, proxy: SlowProxy, trouble: Callable[[SlowProxy], Any]
) -> None:
    """Two hundred requests in a row: waiting a second for each would take longer than the guard."""
    gateway = await lives(api_key_lookup_timeout_s=1.0)
    account = await gateway.account()
    _, key = await gateway.key(account)
    await gateway.ask(key)
    await trouble(proxy)
    async with asyncio.timeout(HANG_S):
        for _ in range(200):
            assert (await gateway.ask(key)).subject == account
        await asyncio.gather(*(gateway.ask(key) for _ in range(200)))
    assert gateway.identity.state == "degraded"
    assert gateway.identity.status().stale_keys_served == 400


async def test_a_key_serves_across_a_restart_and_others_are_not_let_in(lives: Life, proxy: SlowProxy) -> None:
    first = await lives()
    account = await first.account()
    (_, used), (_, never_used), (revoked_id, revoked) = [await first.key(account) for _ in range(3)]
    await first.ask(used)
    await first.ask(revoked)
    await first.accounts.revoke_key(first.owner, UUID(account), revoked_id)
    await first.identity.close()
    unplug(proxy)
    second = await lives()
    assert (await second.ask(used)).subject == account
    assert await second.code(never_used) == "idp_unavailable"
    assert await second.code(revoked) == "token_revoked"


async def test_a_key_does_not_serve_longer_than_the_settings_allow(lives: Life, proxy: SlowProxy) -> None:
    gateway = await lives(api_key_max_stale_s=0)
    _, key = await gateway.key(await gateway.account())
    await gateway.ask(key)
    unplug(proxy)
    assert await gateway.code(key) == "idp_unavailable"


async def test_what_an_account_lost_before_the_outage_does_not_come_back(
    lives: Life, proxy: SlowProxy, issuer: TestIssuer, tmp_path: Path
) -> None:
    """Another replica narrows the account; this one reads what it keeps again when it is told, not when asked."""
    copies = IdentityCopies(tmp_path / "copies", issuer.settings(api_key_pepper=PEPPER))
    gateway, other = await lives(), await lives()
    other.owner = gateway.owner
    account = await gateway.account()
    _, key = await gateway.key(account)
    assert (await gateway.ask(key)).roles == {"analyst"}
    await other.accounts.change(
        other.owner, UUID(account), AccountChange(frozenset(), None, None, disabled=False), expected_version=1
    )
    await gateway.revocations.notified("esclusa_identity", "")
    narrowed = [frozenset[str]()]
    assert await eventually(
        lambda: [saved.record.account.roles for saved in copies.load_keys()] == narrowed, within_s=HANG_S
    )
    unplug(proxy)
    assert (await gateway.ask(key)).roles == frozenset()


async def test_the_database_is_asked_again_when_it_is_back(
    lives: Life, proxy: SlowProxy, spare_postgres: PrivatePostgres
) -> None:
    gateway = await lives()
    account = await gateway.account()
    (_, key), (_, fresh) = await gateway.key(account), await gateway.key(account)
    await gateway.ask(key)
    unplug(proxy)
    await gateway.ask(key)
    assert await gateway.code(fresh) == "idp_unavailable"
    plug_in(proxy, spare_postgres)
    async with asyncio.timeout(HANG_S):
        while gateway.identity.state != "ready":
            await gateway.ask(key)
            await asyncio.sleep(0.05)
    assert (await gateway.ask(fresh)).subject == account
