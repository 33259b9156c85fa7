"""The store of responses on a real Postgres: owners, chains and their bounds, retention, erasure, outages."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.audit.content import ContentSealer
from gateway.audit.content_keys import parse_content_keys
from gateway.audit.erasure import erase
from gateway.conversations import store as store_module
from gateway.conversations.sealing import Owner
from gateway.conversations.store import ResponseStore
from gateway.errors import InvalidRequest, Unavailable
from gateway.flow.context import SystemClock, SystemIds
from gateway.storage.postgres import make_engine

ANA = Owner("acme", "https://idp", "ana")
DAY = timedelta(days=1)
IDS = SystemIds()


def sealer_of(name: str = "k1") -> ContentSealer:
    text = f"{name}:{base64.b64encode(name.encode() * 16).decode()}"
    return ContentSealer(parse_content_keys(text, source="test"), DAY)


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = make_engine(database_url, pool_size=2)
    yield engine
    await engine.dispose()


@pytest.fixture
def store(engine: AsyncEngine) -> ResponseStore:
    return ResponseStore(engine, sealer_of(), SystemClock())


async def kept(
    store: ResponseStore, owner: Owner = ANA, *, previous: UUID | None = None, ttl: timedelta = DAY, text: str = "Hola"
) -> UUID:
    key = IDS.uuid7()
    await store.keep(owner, key, {"id": text, "output": []}, [{"id": "i"}], previous=previous, kept=ttl)
    return key


async def count(engine: AsyncEngine) -> int:
    async with engine.connect() as connection:
        return int((await connection.execute(sa.text("SELECT count(*) FROM stored_response"))).scalar_one())


async def test_a_chain_comes_oldest_first(store: ResponseStore) -> None:
    first = await kept(store, text="1")
    second = await kept(store, previous=first, text="2")
    third = await kept(store, previous=second, text="3")
    chain = await store.chain(ANA, third)
    assert chain is not None
    assert [one.response["id"] for one in chain] == ["1", "2", "3"]


async def test_a_chain_never_reaches_into_what_belongs_to_somebody_else(store: ResponseStore) -> None:
    theirs = await kept(store, Owner("acme", "https://idp", "luis"))
    mine = await kept(store, previous=theirs)
    assert await store.chain(ANA, mine) is None
    for other in (Owner("globex", "https://idp", "ana"), Owner("acme", "https://other", "ana")):
        assert await store.get(other, mine) is None
        assert not await store.delete(other, mine)


async def test_a_chain_is_bounded(store: ResponseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MAX_CHAIN", 3)
    link: UUID | None = None
    for _ in range(3):
        link = await kept(store, previous=link)
    assert link is not None
    assert len(await store.chain(ANA, link) or ()) == 3
    link = await kept(store, previous=link)
    with pytest.raises(InvalidRequest) as long:
        await store.chain(ANA, link)
    assert long.value.code == "conversation_too_long"
    monkeypatch.setattr(store_module, "MAX_CHAIN", 100)
    monkeypatch.setattr(store_module, "MAX_CHAIN_BYTES", 150)
    with pytest.raises(InvalidRequest) as large:
        await store.chain(ANA, link)
    assert large.value.code == "conversation_too_long"


async def test_what_is_over_is_swept_and_nothing_else(store: ResponseStore, engine: AsyncEngine) -> None:
    stays = await kept(store)
    await kept(store, ttl=timedelta(seconds=-1))
    assert await count(engine) == 2
    assert await store.sweep() == 1
    assert await store.get(ANA, stays) is not None
    assert await store.sweep() == 0


async def test_an_erased_person_has_nothing_kept(store: ResponseStore, engine: AsyncEngine) -> None:
    await kept(store)
    theirs = await kept(store, Owner("acme", "https://idp", "luis"))

    async def tell(_: dict[str, Any]) -> None: ...

    erased = await erase(engine, tenant=ANA.tenant, issuer=ANA.issuer, subject=ANA.subject, tell=tell)
    assert erased.responses == 1
    assert await store.get(Owner("acme", "https://idp", "luis"), theirs) is not None
    assert await count(engine) == 1


async def test_without_a_key_nothing_is_kept_or_read(engine: AsyncEngine, store: ResponseStore) -> None:
    keyless = ResponseStore(engine, None, SystemClock())
    assert not keyless.keeps
    await kept(keyless)
    assert await count(engine) == 0
    key = await kept(store)
    assert await keyless.get(ANA, key) is None
    assert await keyless.chain(ANA, key) is None


async def test_what_another_key_has_sealed_is_as_if_it_was_not_there(engine: AsyncEngine, store: ResponseStore) -> None:
    key = await kept(store)
    other = ResponseStore(engine, sealer_of("k2"), SystemClock())
    assert await other.get(ANA, key) is None
    assert await other.chain(ANA, key) is None


async def test_a_database_that_is_away_is_said_to_be() -> None:
    engine = make_engine("postgresql+asyncpg://nobody@127.0.0.1:1/none", pool_size=1)
    away = ResponseStore(engine, sealer_of(), SystemClock())
    with pytest.raises(Unavailable) as refused:
        await away.get(ANA, IDS.uuid7())
    assert refused.value.code == "responses_unavailable"
    await engine.dispose()
