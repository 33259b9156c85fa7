"""API keys: their form, their check, and what a key that was sent turns into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway.errors import ConfigError, GatewayError, Unavailable
from gateway.flow.context import RequestContext
from gateway.flow.values import Credential
from gateway.identity.api_keys import (
    ISSUER,
    ApiKeyRecord,
    ApiKeyVerifier,
    KeyHasher,
    ServiceAccount,
    effective_models,
    principal_of,
)
from gateway.identity.service import IdentityService
from gateway.settings import IdentitySettings
from tests.fakes.manual_clock import ManualClock

PEPPER = "pimienta-0123456789-0123456789-abc"
SETTINGS = IdentitySettings(api_key_pepper=PEPPER)


class FakeKeys:
    """Keys in a dictionary; counts look-ups, can be down."""

    def __init__(self) -> None:
        self.records: dict[str, ApiKeyRecord] = {}
        self.asked: list[str] = []
        self.used: list[dict[str, datetime]] = []
        self.down = False

    async def find_key(self, key_id: str) -> ApiKeyRecord | None:
        self.asked.append(key_id)
        if self.down:
            raise Unavailable("down", code="idp_unavailable")
        return self.records.get(key_id)

    async def find_keys(self, key_ids: Sequence[str]) -> list[ApiKeyRecord]:
        self.asked += key_ids
        if self.down:
            raise Unavailable("down", code="idp_unavailable")
        return [self.records[key_id] for key_id in key_ids if key_id in self.records]

    async def mark_used(self, used: dict[str, datetime]) -> None:
        if self.down:
            raise Unavailable("down", code="idp_unavailable")
        self.used.append(used)

    def add(self, *, account: dict[str, Any] | None = None, **changes: Any) -> str:
        minted = KeyHasher(PEPPER).mint()
        base: dict[str, Any] = {
            "key_id": minted.key_id,
            "account": make_account(**(account or {})),
            "digest": minted.digest,
            "name": "ci",
            "roles": None,
            "models": None,
            "created_by": "i ana",
            "created_at": datetime.now(UTC),
            "expires_at": datetime.now(UTC) + timedelta(days=1),
        }
        self.records[minted.key_id] = ApiKeyRecord(**{**base, **changes})
        return minted.text


def make_account(**changes: Any) -> ServiceAccount:
    base: dict[str, Any] = {
        "id": "0199d0a0-0000-7000-8000-000000000001",
        "tenant": "acme",
        "name": "nightly-batch",
        "owner_issuer": "https://idp.test",
        "owner_subject": "ana",
        "roles": frozenset({"employee", "analyst"}),
        "department": "finanzas",
        "clearance": "internal",
        "models": None,
        "disabled": False,
        "created_by": "i ana",
        "created_at": datetime.now(UTC),
    }
    return ServiceAccount(**{**base, **changes})


@pytest.fixture
def keys() -> FakeKeys:
    return FakeKeys()


@pytest.fixture
def verifier(keys: FakeKeys) -> ApiKeyVerifier:
    return ApiKeyVerifier(keys, SETTINGS, ManualClock())


async def code(verifier: ApiKeyVerifier, text: str) -> str:
    with pytest.raises(GatewayError) as refused:
        await verifier.verify(text)
    return refused.value.code


def test_key_has_the_products_prefix_and_enough_randomness() -> None:
    texts = {KeyHasher(PEPPER).mint().text for _ in range(50)}
    assert len(texts) == 50
    assert all(text.startswith("sk-esclusa-") and len(text) == 74 for text in texts)


def test_text_of_a_key_is_not_in_its_repr() -> None:
    minted = KeyHasher(PEPPER).mint()
    assert minted.text not in repr(minted)
    assert "digest" not in repr(replace(make_record(minted.digest)))


def make_record(digest: bytes) -> ApiKeyRecord:
    now = datetime.now(UTC)
    return ApiKeyRecord("k" * 16, make_account(), digest, "ci", None, None, "a", now, now)


def test_hash_depends_on_the_pepper() -> None:
    text = KeyHasher(PEPPER).mint().text
    assert KeyHasher(PEPPER).digest(text) != KeyHasher(PEPPER + "x").digest(text)


def test_short_pepper_ends_the_start() -> None:
    with pytest.raises(ConfigError, match="api_key_pepper"):
        KeyHasher("short")


async def test_good_key_becomes_its_account(verifier: ApiKeyVerifier, keys: FakeKeys) -> None:
    who = await verifier.verify(keys.add())
    assert (who.kind, who.issuer, who.subject) == ("service", ISSUER, make_account().id)
    assert (who.tenant, who.department, who.clearance) == ("acme", "finanzas", "internal")
    assert who.roles == {"employee", "analyst"}
    assert who.credential_id in keys.records


@pytest.mark.parametrize(
    "spoil",
    [
        lambda t: t[:-1] + ("A" if t[-1] != "A" else "B"),
        lambda t: t[:40] + ("A" if t[40] != "A" else "B") + t[41:],
        lambda t: t + "A",
        lambda t: t[:-1],
        lambda t: t.replace("sk-esclusa-", "sk-other-"),
        lambda t: t.upper(),
        lambda t: "sk-' OR '1'='1",
        lambda t: "sk-esclusa-" + "é" * 63,
    ],
)
async def test_forged_key_fails_before_the_database_is_asked(
    verifier: ApiKeyVerifier, keys: FakeKeys, spoil: Any
) -> None:
    assert await code(verifier, spoil(keys.add())) == "invalid_token"
    assert keys.asked == []


async def test_key_of_another_installation_is_refused(verifier: ApiKeyVerifier, keys: FakeKeys) -> None:
    assert await code(verifier, KeyHasher("otra-pimienta-0123456789-0123456789").mint().text) == "invalid_token"
    assert keys.asked == []


async def test_unknown_key_with_a_good_tag_is_refused(verifier: ApiKeyVerifier, keys: FakeKeys) -> None:
    assert await code(verifier, KeyHasher(PEPPER).mint().text) == "invalid_token"
    assert len(keys.asked) == 1


async def test_row_of_another_key_does_not_match(verifier: ApiKeyVerifier, keys: FakeKeys) -> None:
    text = keys.add()
    (key_id,) = keys.records
    keys.records[key_id] = replace(keys.records[key_id], digest=bytes(32))
    assert await code(verifier, text) == "invalid_token"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"expires_at": datetime.now(UTC) - timedelta(seconds=1)}, "token_expired"),
        ({"revoked_at": datetime.now(UTC)}, "token_revoked"),
        ({"account": {"disabled": True}}, "token_revoked"),
    ],
)
async def test_key_out_of_use_is_refused(
    verifier: ApiKeyVerifier, keys: FakeKeys, changes: dict[str, Any], expected: str
) -> None:
    assert await code(verifier, keys.add(**changes)) == expected


async def test_database_down_is_503_not_401(verifier: ApiKeyVerifier, keys: FakeKeys) -> None:
    text = keys.add()
    keys.down = True
    assert await code(verifier, text) == "idp_unavailable"


async def test_without_a_pepper_no_key_is_accepted(keys: FakeKeys) -> None:
    assert await code(ApiKeyVerifier(keys, IdentitySettings(), ManualClock()), keys.add()) == "invalid_token"


def test_key_never_has_a_role_its_account_lost() -> None:
    record = replace(make_record(bytes(32)), account=make_account(roles={"employee"}), roles=frozenset({"analyst"}))
    assert principal_of(record).roles == frozenset()


@pytest.mark.parametrize(
    ("outer", "inner", "both"),
    [
        (None, None, None),
        (("a",), None, ("a",)),
        (None, ("a",), ("a",)),
        (("a", "b"), ("b", "c"), ("b",)),
        (("a",), ("b",), ()),
    ],
)
def test_models_narrow_twice(outer: Any, inner: Any, both: Any) -> None:
    assert effective_models(replace(make_record(bytes(32)), account=make_account(models=outer), models=inner)) == both


async def test_last_use_is_written_in_one_batch(verifier: ApiKeyVerifier, keys: FakeKeys) -> None:
    for text in (keys.add(), keys.add()) * 3:
        await verifier.verify(text)
    await verifier.flush()
    await verifier.flush()
    assert [set(batch) for batch in keys.used] == [set(keys.records)]


async def test_last_use_is_kept_while_the_database_is_down(verifier: ApiKeyVerifier, keys: FakeKeys) -> None:
    await verifier.verify(keys.add())
    keys.down = True
    await verifier.flush()
    keys.down = False
    await verifier.flush()
    assert len(keys.used) == 1


async def test_service_remembers_a_key_for_less_than_five_seconds(keys: FakeKeys, context: RequestContext) -> None:
    clock = ManualClock()
    service = IdentityService(SETTINGS, clock=clock, keys=keys)
    credential = Credential("x-api-key", keys.add())
    for _ in range(10):
        await service.authenticate(credential, context)
    assert len(keys.asked) == 1
    clock.advance(4)
    await service.authenticate(credential, context)
    assert len(keys.asked) == 2


async def test_work_left_behind_has_the_rights_that_its_key_has_now(context: RequestContext) -> None:
    keys, clock = FakeKeys(), ManualClock()
    service = IdentityService(SETTINGS, clock=clock, keys=keys)
    text = keys.add(account={"models": ("small", "large")})
    principal = await service.authenticate(Credential("authorization", text), context)
    (key_id, record), *_ = keys.records.items()
    keys.records[key_id] = replace(record, account=replace(record.account, models=("small",)))
    assert (await service.renewed(principal)).narrowed_models == ("small",)
    for gone in (
        replace(record, account=replace(record.account, disabled=True)),
        replace(record, revoked_at=clock.now()),
        replace(record, expires_at=clock.now() - timedelta(seconds=1)),
        None,
    ):
        keys.records = {} if gone is None else {key_id: gone}
        with pytest.raises(GatewayError) as refused:
            await service.renewed(principal)
        assert refused.value.status == 401
