"""The service as a whole: cache, shared secret, several providers, revocation, speed of a hit (threat T11)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway.errors import GatewayError, Unavailable
from gateway.flow.context import RequestContext
from gateway.flow.values import Credential, Principal
from gateway.identity.revocations import Revocation, RevocationList
from gateway.identity.service import IdentityService
from gateway.identity.token_cache import TokenCache, digest_of
from gateway.settings import IdentitySettings, ProviderSettings
from tests.fakes.issuer import TestIssuer, raw_token
from tests.fakes.manual_clock import ManualClock
from tests.gateway.identity.conftest import eventually

SECRET = "desarrollo-solamente-0123456789-abcdef"


class FakeRevocationStore:
    def __init__(self) -> None:
        self.entries: list[Revocation] = []
        self.down = False

    async def active_revocations(self, now: datetime) -> tuple[Revocation, ...]:
        if self.down:
            raise Unavailable("down", detail="test")
        return tuple(self.entries)

    def add(self, kind: Any, **fields: Any) -> None:
        base: dict[str, Any] = {
            "tenant": "default",
            "issuer": None,
            "subject": None,
            "credential_id": None,
            "issued_before": None,
            "reason": "left the company",
            "created_by": "admin",
            "created_at": datetime.now(UTC),
        }
        self.entries.append(Revocation(id=str(len(self.entries)), kind=kind, **{**base, **fields}))


class Bench:
    def __init__(self, issuer: TestIssuer, context: RequestContext, **settings: Any) -> None:
        self.issuer = issuer
        self.clock = ManualClock()
        self.store = FakeRevocationStore()
        self.context = context
        configured = issuer.settings(**settings)
        self.revocations = RevocationList(self.store, configured, self.clock)
        self.service = IdentityService(
            configured, clock=self.clock, key_sources={"corp": issuer}, revocations=self.revocations
        )

    async def ask(self, token: str) -> Principal:
        return await self.service.authenticate(Credential("authorization", token), self.context)

    async def code(self, token: str) -> str:
        with pytest.raises(GatewayError) as refused:
            await self.ask(token)
        return refused.value.code


@pytest.fixture
async def bench(issuer: TestIssuer, context: RequestContext) -> Bench:
    ready = Bench(issuer, context)
    await ready.revocations.refresh()
    return ready


# ------------------------------------------------------------------------------------------------- cache


async def test_second_use_of_a_token_is_a_hit(bench: Bench) -> None:
    token = bench.issuer.token()
    assert await bench.ask(token) is await bench.ask(token)
    assert (bench.service.status().cache_hits, bench.service.status().cache_entries) == (1, 1)


async def test_tokens_that_share_all_but_the_signature_do_not_share_an_entry(bench: Bench) -> None:
    token = bench.issuer.token()
    await bench.ask(token)
    assert await bench.code(token[:-8] + "AAAAAAAA") == "invalid_token"


async def test_tokens_that_share_a_long_prefix_stay_two_people(bench: Bench) -> None:
    one, two = bench.issuer.token(zz="1", sub="ana"), bench.issuer.token(zz="1", sub="ann")
    assert [(await bench.ask(token)).subject for token in (one, two, one, two)] == ["ana", "ann", "ana", "ann"]


async def test_entry_lives_a_minute(bench: Bench) -> None:
    token = bench.issuer.token()
    await bench.ask(token)
    bench.clock.advance(60)
    await bench.ask(token)
    assert bench.service.status().cache_hits == 0


async def test_entry_never_outlives_exp(bench: Bench) -> None:
    now = int(bench.clock.now().timestamp())
    token = bench.issuer.token(iat=now, exp=now + 10)
    await bench.ask(token)
    bench.clock.advance(41)
    assert await bench.code(token) == "token_expired"


async def test_entry_ends_when_the_wall_clock_jumps_past_exp(bench: Bench) -> None:
    token = bench.issuer.token()
    await bench.ask(token)
    bench.clock.step_wall(600)
    assert await bench.code(token) == "token_expired"


@pytest.mark.parametrize("skew", [-45, 45])
async def test_small_clock_skew_is_refused_or_accepted_but_never_an_error(bench: Bench, skew: int) -> None:
    token = bench.issuer.token()
    bench.clock.step_wall(skew)
    if skew < 0:
        assert await bench.code(token) == "token_not_yet_valid"
    else:
        assert (await bench.ask(token)).subject == "u-1042"


@pytest.mark.parametrize(("skew", "expected"), [(-600, "token_not_yet_valid"), (600, "token_expired")])
async def test_large_clock_skew_is_refused(bench: Bench, skew: int, expected: str) -> None:
    token = bench.issuer.token()
    bench.clock.step_wall(skew)
    assert await bench.code(token) == expected


async def test_change_of_the_key_set_drops_its_entries(bench: Bench) -> None:
    token = bench.issuer.token()
    await bench.ask(token)
    bench.issuer.add("k2", "ES256", 5)
    await bench.service._key_sets["corp"].refresh("background")
    await bench.ask(token)
    assert bench.service.status().cache_hits == 0


async def test_unchanged_key_set_keeps_its_entries(bench: Bench) -> None:
    token = bench.issuer.token()
    await bench.ask(token)
    await bench.service._key_sets["corp"].refresh("background")
    await bench.ask(token)
    assert bench.service.status().cache_hits == 1


async def test_forget_drops_everything(bench: Bench) -> None:
    await bench.ask(bench.issuer.token())
    bench.service.forget()
    assert bench.service.status().cache_entries == 0


def test_cache_is_bounded_and_drops_the_oldest_use() -> None:
    cache = TokenCache(ManualClock(), entries=2, ttl_s=60)
    anyone = Principal("t", "i", "s")
    for name in ("a", "b"):
        cache.put(digest_of(name), anyone, expires_s=0.0, generation=0, current=lambda: 0)
    cache.get(digest_of("a"))
    cache.put(digest_of("c"), anyone, expires_s=0.0, generation=0, current=lambda: 0)
    assert [cache.get(digest_of(name)) is not None for name in ("a", "b", "c")] == [True, False, True]


async def test_hit_costs_a_hundredth_of_a_signature_check(bench: Bench) -> None:
    """In the thread's own processor time, so that a busy machine changes neither side of the ratio."""

    async def cpu_s(credentials: list[Credential]) -> float:
        started = time.thread_time()
        for credential in credentials:
            await bench.service.authenticate(credential, bench.context)
        return (time.thread_time() - started) / len(credentials)

    known = Credential("authorization", bench.issuer.token())
    first = await cpu_s([Credential("authorization", bench.issuer.token(sub=f"u-{n}")) for n in range(50)])
    await bench.service.authenticate(known, bench.context)
    assert min([await cpu_s([known] * 500) for _ in range(5)]) < first / 10


# ------------------------------------------------------------------------------------------ other providers


def secret_settings(**changes: Any) -> IdentitySettings:
    base: dict[str, Any] = {
        "name": "dev",
        "type": "shared_secret",
        "issuer": "dev-issuer",
        "audiences": ("ai-gateway",),
        "shared_secret": SECRET,
        "roles_claim": "roles",
    }
    return IdentitySettings(providers=(ProviderSettings(**{**base, **changes}),))


def hmac_token(secret: str, algorithm: str = "HS256", **changes: Any) -> str:
    claims = TestIssuer(issuer="dev-issuer").claims(roles=["employee"], **changes)
    header = json.dumps({"alg": algorithm, "typ": "JWT"}).encode()
    return raw_token(header, json.dumps(claims).encode(), algorithm, secret.encode())


async def test_shared_secret_provider_verifies_its_tokens(context: RequestContext) -> None:
    service = IdentityService(secret_settings(), clock=ManualClock())
    found = await service.authenticate(Credential("authorization", hmac_token(SECRET)), context)
    assert (found.roles, service.ready) == (frozenset({"employee"}), True)


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (hmac_token("another-secret-0123456789-0123456789"), "invalid_token"),
        (hmac_token(SECRET, "HS512"), "alg_not_allowed"),
        (hmac_token(SECRET, aud="other"), "wrong_audience"),
    ],
)
async def test_shared_secret_provider_is_as_strict(context: RequestContext, token: str, expected: str) -> None:
    service = IdentityService(secret_settings(), clock=ManualClock())
    with pytest.raises(GatewayError) as refused:
        await service.authenticate(Credential("authorization", token), context)
    assert refused.value.code == expected


async def test_secret_of_one_provider_never_signs_for_another(issuer: TestIssuer, context: RequestContext) -> None:
    both = IdentitySettings(providers=(*secret_settings().providers, issuer.provider()))
    service = IdentityService(both, clock=ManualClock(), key_sources={"corp": issuer})
    with pytest.raises(GatewayError) as refused:
        await service.authenticate(Credential("authorization", hmac_token(SECRET, iss=issuer.issuer)), context)
    assert refused.value.code == "alg_not_allowed"


async def test_key_of_one_provider_never_signs_for_another(issuer: TestIssuer, context: RequestContext) -> None:
    other = TestIssuer(issuer="https://other.test")
    other.add("o1", "RS256", 4)
    both = IdentitySettings(providers=(issuer.provider(), other.provider(name="other", issuer=other.issuer)))
    service = IdentityService(both, clock=ManualClock(), key_sources={"corp": issuer, "other": other})
    forged = other.token("o1", iss=issuer.issuer)
    with pytest.raises(GatewayError) as refused:
        await service.authenticate(Credential("authorization", forged), context)
    assert refused.value.code == "unknown_key"


async def test_no_provider_means_nobody(context: RequestContext) -> None:
    service = IdentityService(IdentitySettings(), clock=ManualClock())
    with pytest.raises(GatewayError) as refused:
        await service.authenticate(Credential("authorization", TestIssuer.with_keys(k1="ES256").token()), context)
    assert refused.value.status == 401


async def test_api_key_without_a_repository_is_refused(bench: Bench) -> None:
    assert await bench.code("sk-esclusa-anything") == "invalid_token"


# --------------------------------------------------------------------------------------------- revocations


def just_after(principal: Principal) -> datetime:
    assert principal.issued_at is not None
    return principal.issued_at + timedelta(seconds=1)


REVOKERS: dict[str, Callable[[FakeRevocationStore, Principal], None]] = {
    "token": lambda s, p: s.add("credential", issuer=p.issuer, credential_id=p.credential_id),
    "subject": lambda s, p: s.add("subject", issuer=p.issuer, subject=p.subject),
    "subject before": lambda s, p: s.add(
        "issued_before", issuer=p.issuer, subject=p.subject, issued_before=just_after(p)
    ),
    "issuer before": lambda s, p: s.add("issued_before", issuer=p.issuer, issued_before=just_after(p)),
    "tenant before": lambda s, p: s.add("issued_before", issued_before=just_after(p)),
}


@pytest.mark.parametrize("kind", REVOKERS)
async def test_revocation_ends_cached_use_and_running_answers(bench: Bench, kind: str) -> None:
    token = bench.issuer.token(jti="j-1")
    who = await bench.ask(token)
    assert not bench.service.is_revoked(who)
    REVOKERS[kind](bench.store, who)
    await bench.revocations.refresh()
    assert bench.service.is_revoked(who)
    assert await bench.code(token) == "token_revoked"


async def test_token_issued_after_t_is_good_again(bench: Bench) -> None:
    who = await bench.ask(bench.issuer.token())
    bench.store.add("issued_before", issuer=who.issuer, subject=who.subject, issued_before=who.issued_at)
    await bench.revocations.refresh()
    assert not bench.service.is_revoked(who)


@pytest.mark.parametrize("kind", ["subject before", "issuer before", "tenant before"])
async def test_a_principal_without_an_issue_time_is_older_than_every_bound(bench: Bench, kind: str) -> None:
    """No credential of today makes one. Whoever adds a kind that does is refused rather than let through."""
    who = await bench.ask(bench.issuer.token())
    REVOKERS[kind](bench.store, who)
    await bench.revocations.refresh()
    assert bench.service.is_revoked(replace(who, issued_at=None))
    assert not bench.service.is_revoked(replace(who, issued_at=None, tenant="another"))


async def test_revocation_of_one_subject_leaves_the_others(bench: Bench) -> None:
    bench.store.add("subject", issuer=bench.issuer.issuer, subject="somebody-else")
    await bench.revocations.refresh()
    assert (await bench.ask(bench.issuer.token())).subject == "u-1042"


async def test_same_subject_of_another_issuer_is_somebody_else(bench: Bench) -> None:
    bench.store.add("subject", issuer="https://other.test", subject="u-1042")
    await bench.revocations.refresh()
    assert (await bench.ask(bench.issuer.token())).subject == "u-1042"


async def test_last_list_serves_while_the_database_is_down(bench: Bench) -> None:
    bench.store.add("subject", issuer=bench.issuer.issuer, subject="u-1042")
    await bench.revocations.refresh()
    bench.store.down = True
    assert await bench.revocations.refresh() is False
    assert await bench.code(bench.issuer.token()) == "token_revoked"
    assert (await bench.ask(bench.issuer.token(sub="ana"))).subject == "ana"


async def test_list_that_is_too_old_is_503(bench: Bench) -> None:
    bench.store.down = True
    bench.clock.advance(86_401)
    now = int(bench.clock.now().timestamp())
    await bench.service._key_sets["corp"].refresh("background")
    assert await bench.code(bench.issuer.token(iat=now, exp=now + 60)) == "idp_unavailable"


async def test_list_that_was_never_loaded_is_503(issuer: TestIssuer, context: RequestContext) -> None:
    assert await Bench(issuer, context).code(issuer.token()) == "idp_unavailable"


async def test_notification_is_followed_at_once(issuer: TestIssuer, context: RequestContext) -> None:
    bench = Bench(issuer, context)
    await bench.service.start()
    who = await bench.ask(issuer.token())
    bench.store.add("subject", issuer=who.issuer, subject=who.subject)
    await bench.revocations.notified("esclusa_identity", None)
    assert await eventually(lambda: bench.service.is_revoked(who), within_s=1)
    await bench.service.close()


async def test_poll_alone_finds_a_revocation(issuer: TestIssuer, context: RequestContext) -> None:
    bench = Bench(issuer, context, revocation_poll_s=0.05)
    await bench.service.start()
    who = await bench.ask(issuer.token())
    bench.store.add("subject", issuer=who.issuer, subject=who.subject)
    assert await eventually(lambda: bench.service.is_revoked(who), within_s=2)
    await bench.service.close()


# ------------------------------------------------------------------------------ work that a caller has left behind


async def test_work_left_behind_runs_on_when_its_token_has_expired(bench: Bench) -> None:
    principal = await bench.ask(bench.issuer.token())
    bench.clock.advance(86_400)
    assert await bench.service.renewed(principal) == principal


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("subject", ("issuer", "subject")),
        ("credential", ("issuer", "credential_id")),
        ("issued_before", ("issuer",)),
    ],
)
async def test_work_left_behind_ends_with_a_revocation(bench: Bench, kind: str, names: tuple[str, ...]) -> None:
    principal = await bench.ask(bench.issuer.token(jti="t-1"))
    moment = {"issued_before": bench.clock.now() + timedelta(days=1)} if kind == "issued_before" else {}
    bench.store.add(kind, **{name: getattr(principal, name) for name in names}, **moment)
    await bench.revocations.refresh()
    with pytest.raises(GatewayError) as refused:
        await bench.service.renewed(principal)
    assert (refused.value.status, refused.value.code) == (401, "token_revoked")


async def test_work_left_behind_ends_when_its_issuer_is_trusted_no_more(bench: Bench) -> None:
    principal = replace(await bench.ask(bench.issuer.token()), issuer="https://former.example")
    with pytest.raises(GatewayError) as refused:
        await bench.service.renewed(principal)
    assert refused.value.status == 401
