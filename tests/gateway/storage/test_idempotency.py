"""`Idempotency-Key` over a real database: once, for its caller, for its request, for two days."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import func, update
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.errors import Conflict, Unavailable
from gateway.flow.values import Principal
from gateway.storage.idempotency import (
    REMEMBERED,
    IdempotencyStore,
    KeyTaken,
    RequestKey,
    idempotent_request,
    request_key,
)
from gateway.storage.postgres import make_engine

ANA = Principal("acme", "https://idp", "ana")
EVA = Principal("acme", "https://idp", "eva")
FOREIGN = Principal("other", "https://idp", "ana")


def key_of(caller: Principal = ANA, *parts: object) -> RequestKey:
    made = request_key(caller, "k-1", *(parts or ("pause", "mini")))
    assert made is not None
    return made


def test_without_a_key_nothing_is_remembered() -> None:
    assert request_key(ANA, None, "pause", "mini") is None


def test_a_request_is_its_meaning_and_not_the_order_of_its_sets() -> None:
    one, other = frozenset({"a", "b", "c"}), frozenset({"c", "b", "a"})
    assert key_of(ANA, "x", one).request_sha256 == key_of(ANA, "x", other).request_sha256
    assert key_of(ANA, "x", one).request_sha256 != key_of(ANA, "y", one).request_sha256
    assert key_of(ANA, b"ab", "c").request_sha256 != key_of(ANA, b"a", "bc").request_sha256


async def test_the_same_request_of_the_same_caller_is_found_again(engine: AsyncEngine) -> None:
    store = IdempotencyStore(engine)
    assert await store.replayed_resource(key_of()) is None
    await store.remember(key_of(), "mini")
    assert await store.replayed_resource(key_of()) == "mini"
    assert await store.replayed_resource(key_of(EVA)) is None
    assert await store.replayed_resource(key_of(FOREIGN)) is None
    with pytest.raises(KeyTaken):
        await store.remember(key_of(), "mini")


async def test_a_key_for_another_request_is_a_conflict(engine: AsyncEngine) -> None:
    store = IdempotencyStore(engine)
    await store.remember(key_of(), "mini")
    with pytest.raises(Conflict) as refused:
        await store.replayed_resource(key_of(ANA, "resume", "mini"))
    assert refused.value.code == "idempotency_key_reused"


async def test_a_key_may_be_used_again_after_two_days(engine: AsyncEngine) -> None:
    store = IdempotencyStore(engine)
    await store.remember(key_of(), "mini")
    async with engine.begin() as connection:
        aged = func.clock_timestamp() - REMEMBERED - timedelta(seconds=1)
        await connection.execute(update(idempotent_request).values(created_at=aged))
    await store.remember(key_of(ANA, "resume", "mini"), "mini")
    assert await store.replayed_resource(key_of(ANA, "resume", "mini")) == "mini"


async def test_a_database_that_is_away_is_named_as_what_it_is() -> None:
    away = make_engine("postgresql+asyncpg://x:x@127.0.0.1:9/x")
    with pytest.raises(Unavailable) as refused:
        await IdempotencyStore(away).replayed_resource(key_of())
    assert (refused.value.status, refused.value.code) == (503, "database_unavailable")
    await away.dispose()
