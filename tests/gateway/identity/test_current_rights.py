"""The rights of keys in use: read again together, kept through an outage, forgotten when nobody asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gateway.errors import Unavailable
from gateway.flow.values import Principal
from gateway.identity.api_keys import ApiKeyRecord, ServiceAccount, principal_of
from gateway.identity.current_rights import FORGET_S, CurrentRights
from tests.fakes.manual_clock import ManualClock

NOW = datetime(2026, 11, 30, tzinfo=UTC)
ACCOUNT = ServiceAccount(
    "a-1", "acme", "ci", "https://idp", "ana", frozenset({"analyst"}), None, None, None, False, "ana", NOW
)
KEY = ApiKeyRecord("k-1", ACCOUNT, b"d" * 32, "ci", None, None, "ana", NOW, NOW + timedelta(days=9))
OTHER = replace(KEY, key_id="k-2")
PERSON = Principal(tenant="acme", issuer="https://idp", subject="ana", credential_id="k-1", provider="keycloak")


class Keys:
    def __init__(self) -> None:
        self.records = {"k-1": KEY, "k-2": OTHER}
        self.queries: list[tuple[str, ...]] = []
        self.down = False

    async def find_key(self, key_id: str) -> ApiKeyRecord | None:
        return self.records.get(key_id)

    async def find_keys(self, key_ids: Sequence[str]) -> list[ApiKeyRecord]:
        self.queries.append(tuple(key_ids))
        if self.down:
            raise Unavailable("down")
        return [self.records[key_id] for key_id in key_ids if key_id in self.records]

    async def mark_used(self, used: dict[str, datetime]) -> None: ...


def bench() -> tuple[Keys, ManualClock, CurrentRights]:
    keys, clock = Keys(), ManualClock()
    return keys, clock, CurrentRights(keys, clock)


def narrow(keys: Keys) -> None:
    keys.records["k-1"] = replace(KEY, account=replace(ACCOUNT, roles=frozenset(), models=("mini",)))


async def test_a_narrowed_account_is_seen_after_the_next_refresh() -> None:
    keys, _, rights = bench()
    asked = principal_of(KEY)
    assert rights.of(asked) is asked
    narrow(keys)
    await rights.refresh()
    assert (rights.of(asked).roles, rights.of(asked).narrowed_models) == (frozenset(), ("mini",))


async def test_all_keys_in_use_are_read_in_one_query() -> None:
    keys, _, rights = bench()
    rights.of(principal_of(KEY))
    rights.of(principal_of(OTHER))
    await rights.refresh()
    assert [sorted(query) for query in keys.queries] == [["k-1", "k-2"]]


async def test_people_with_tokens_cost_no_query() -> None:
    keys, _, rights = bench()
    assert rights.of(PERSON) is PERSON
    await rights.refresh()
    assert keys.queries == []


async def test_while_the_database_is_away_what_is_known_stays() -> None:
    keys, _, rights = bench()
    rights.of(principal_of(KEY))
    narrow(keys)
    await rights.refresh()
    keys.down = True
    await rights.refresh()
    assert rights.of(principal_of(KEY)).roles == frozenset()


async def test_a_key_that_nobody_asks_about_is_read_no_more() -> None:
    keys, clock, rights = bench()
    rights.of(principal_of(KEY))
    clock.advance(FORGET_S + 1)
    await rights.refresh()
    assert keys.queries == []
