"""Recorded prompts and answers: what an envelope promises, and its way through the spool into Postgres."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.audit import content
from gateway.audit.boot_reader import BootReader, Checkpoint
from gateway.audit.content import ContentSealer, ContentTooLarge, ContentUnreadable, Sealed
from gateway.audit.content_keys import ContentKeys, load_content_keys, parse_content_keys
from gateway.audit.content_reader import ContentReader
from gateway.audit.service import AuditService
from gateway.audit.verify import verify
from gateway.errors import ConfigError, RequestTooLarge, Unavailable
from gateway.flow.context import SystemIds
from gateway.flow.evolve import advance
from gateway.flow.parts import TextPart
from gateway.flow.stages import Exchange, Reserved, Targeted
from gateway.flow.values import ChatRequest, Failure, Message, Obligations
from gateway.storage.postgres import make_engine
from tests.fakes.exchanges import ALLOW, admitted, finished, refused

Start = Callable[..., Awaitable[AuditService]]

KEY = "k1:" + base64.b64encode(b"1" * 32).decode()
NEWER = "k2:" + base64.b64encode(b"2" * 32).decode()
NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
REQUEST = SystemIds().uuid7()
SECRET = "¿Cuál es el saldo?"
ANSWER = "El saldo es 12 euros."


def sealer(keys: str = KEY, days: int = 30) -> ContentSealer:
    return ContentSealer(parse_content_keys(keys, source="test"), timedelta(days=days))


def sealed_one(keys: str = KEY) -> Sealed:
    return sealer(keys).seal("prompt", {"prompt": SECRET}, REQUEST, "acme", NOW)


def test_what_is_sealed_opens_again_and_shows_nothing_before() -> None:
    one = sealed_one()
    assert SECRET.encode() not in one.envelope
    assert sealer().open(one, REQUEST, "acme") == {"prompt": SECRET}
    assert one.expires_at == NOW + timedelta(days=30)


def test_the_same_text_never_makes_the_same_envelope() -> None:
    assert len({sealed_one().digest for _ in range(5)}) == 5


@pytest.mark.parametrize(
    ("request_id", "tenant", "changes"),
    [
        (SystemIds().uuid7(), "acme", {}),
        (REQUEST, "rival", {}),
        (REQUEST, "acme", {"kind": "response"}),
        (REQUEST, "acme", {"salt": b"x" * 32}),
        (REQUEST, "acme", {"envelope": b"\x02" + b"x" * 40}),
        (REQUEST, "acme", {"envelope": b""}),
    ],
    ids=["request", "tenant", "kind", "salt", "version", "empty"],
)
def test_an_envelope_opens_only_where_it_belongs(request_id: Any, tenant: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ContentUnreadable) as caught:
        sealer().open(replace(sealed_one(), **changes), request_id, tenant)
    assert caught.value.reason == "damaged"


def test_every_flipped_bit_is_noticed() -> None:
    one = sealed_one()
    for place in range(len(one.envelope)):
        flipped = bytearray(one.envelope)
        flipped[place] ^= 1
        with pytest.raises(ContentUnreadable):
            sealer().open(replace(one, envelope=bytes(flipped)), REQUEST, "acme")


def test_after_a_rotation_the_new_key_writes_and_the_old_one_still_reads() -> None:
    rotated = sealer(f"{NEWER}\n{KEY}\n")
    assert rotated.seal("prompt", {"prompt": SECRET}, REQUEST, "acme", NOW).key_id == "k2"
    assert rotated.open(sealed_one(), REQUEST, "acme") == {"prompt": SECRET}


def test_a_key_that_was_taken_away_leaves_its_content_unreadable() -> None:
    with pytest.raises(ContentUnreadable) as caught:
        sealer(NEWER).open(sealed_one(), REQUEST, "acme")
    assert caught.value.reason == "key_missing"


@pytest.mark.parametrize("wrong", ["", "k1", "k1:short", f"{KEY} {KEY}", "a b:c", ":" + KEY[3:], KEY + "=", "k 1:x"])
def test_a_key_that_is_none_is_refused_without_showing_it(wrong: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_content_keys(wrong, source="audit.content_keys")
    assert KEY[3:] not in str(caught.value)


def test_a_key_file_that_everybody_reads_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(KEY)
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod"):
        load_content_keys(None, file)
    file.chmod(0o600)
    assert load_content_keys(None, file) == ContentKeys("k1", {"k1": b"1" * 32})


def test_a_key_file_that_is_missing_is_told_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        load_content_keys(None, tmp_path / "nowhere")


# ------------------------------------------------------------------------------------------------ through the spool


def private(exchange: Reserved, level: str = "encrypted") -> Reserved:
    decision = replace(ALLOW, obligations=Obligations(content_logging=level))  # type: ignore[arg-type]
    return replace(exchange, asked=decision, decision=decision)


async def recorded(service: AuditService, exchange: Reserved, **changes: Any) -> None:
    await service.intent(exchange)
    await service.completion(finished(exchange, **{"completion_contents": ((TextPart(ANSWER),),), **changes}))


async def stored(engine: AsyncEngine) -> list[Any]:
    async with engine.connect() as connection:
        return list((await connection.execute(text("SELECT * FROM audit_content ORDER BY kind"))).mappings())


def reader(engine: AsyncEngine, service: AuditService, keys: str = KEY) -> ContentReader:
    return ContentReader(engine, sealer(keys), settle=service.settle)


async def read(engine: AsyncEngine, service: AuditService, exchange: Exchange, keys: str = KEY) -> list[Any]:
    found = await reader(engine, service, keys).of_request(exchange.request_id, tenant="acme")
    assert found is not None
    return list(found.texts)


async def test_prompt_and_answer_come_back_as_they_were(start: Start, engine: AsyncEngine) -> None:
    service, exchange = await start(sealer=sealer()), private(admitted())
    await recorded(service, exchange)
    prompt, answer = await read(engine, service, exchange)
    assert (prompt.kind, prompt.state) == ("prompt", "readable")
    assert prompt.content["messages"] == [{"role": "user", "name": None, "content": SECRET}]
    assert (answer.kind, answer.content) == ("response", {"choices": [ANSWER]})


@pytest.mark.parametrize("level", ["none", "hash"])
async def test_no_other_level_stores_a_text(start: Start, engine: AsyncEngine, level: str) -> None:
    service, exchange = await start(sealer=sealer()), private(admitted(), level)
    await recorded(service, exchange, completion_contents=None)
    assert await read(engine, service, exchange) == []
    assert await stored(engine) == []


async def test_the_spool_holds_the_texts_encrypted_only_and_ships_them_when_postgres_is_back(
    start: Start, engine: AsyncEngine, spool_dir: Path
) -> None:
    nowhere = make_engine("postgresql://nobody:x@127.0.0.1:1/none")
    away, exchange = await start(sealer=sealer(), into=nowhere), private(admitted())
    await recorded(away, exchange)
    await away.close()
    await nowhere.dispose()
    on_disk = spooled(spool_dir)
    assert b'"contents"' in on_disk
    for word in (SECRET.encode(), b"saldo", ANSWER.encode()):
        assert word not in on_disk
    back = await start(sealer=sealer())
    async with asyncio.timeout(10):
        while not back.status()["recovered"]:  # noqa: ASYNC110 - the courier has no event for it
            await asyncio.sleep(0.02)
    assert [one.state for one in await read(engine, back, exchange)] == ["readable", "readable"]


def spooled(spool_dir: Path) -> bytes:
    return b"".join(path.read_bytes() for path in spool_dir.rglob("*.log"))


def whole_boot(spool_dir: Path) -> BootReader:
    """The only boot, as if nothing of it had been shipped."""
    (lock,) = spool_dir.rglob("lock")
    reader = BootReader(lock.parent)
    reader.checkpoint = Checkpoint()
    return reader


async def test_erased_content_leaves_the_chain_whole(start: Start, engine: AsyncEngine) -> None:
    service, exchange = await start(sealer=sealer()), private(admitted())
    await recorded(service, exchange)
    await read(engine, service, exchange)
    async with engine.begin() as connection:
        await connection.execute(text("DELETE FROM audit_content"))
    assert [(one.kind, one.state) for one in await read(engine, service, exchange)] == [
        ("prompt", "erased"),
        ("response", "erased"),
    ]
    (chain,) = [report async for report in verify(engine, key=service.commitment_key)]
    assert (chain.checked, chain.problems) == (3, ())


async def test_shipping_once_more_brings_nothing_erased_back(
    start: Start, engine: AsyncEngine, spool_dir: Path
) -> None:
    service, exchange = await start(sealer=sealer()), private(admitted())
    await recorded(service, exchange)
    await read(engine, service, exchange)
    async with engine.begin() as connection:
        await connection.execute(text("DELETE FROM audit_content"))
    again = whole_boot(spool_dir)
    assert len(again.batch(None, 100).frames) == 3
    await service._shipping.shipper.ship(again, None)
    assert await stored(engine) == []


async def test_content_moved_to_another_row_is_damaged(start: Start, engine: AsyncEngine) -> None:
    service, exchange = await start(sealer=sealer()), private(admitted())
    other = private(admitted())
    await recorded(service, exchange)
    await recorded(service, other)
    await read(engine, service, other)
    async with engine.begin() as connection:
        await connection.execute(
            text("UPDATE audit_content SET ciphertext = (SELECT ciphertext FROM audit_content WHERE request_id = :a "
                 "AND kind = 'prompt') WHERE request_id = :b AND kind = 'prompt'"),
            {"a": exchange.request_id, "b": other.request_id},
        )  # fmt: skip
    assert {one.kind: one.state for one in await read(engine, service, other)} == {
        "prompt": "damaged",
        "response": "readable",
    }


async def test_content_is_gone_after_its_time(start: Start, engine: AsyncEngine) -> None:
    service, exchange = await start(sealer=sealer()), private(admitted())
    await recorded(service, exchange)
    await read(engine, service, exchange)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE audit_content SET expires_at = now() - interval '1 second'"))
    assert {one.state for one in await read(engine, service, exchange)} == {"erased"}
    await service._shipping.shipper.maintain_partitions()
    assert await stored(engine) == []


async def test_without_a_key_nothing_runs_whose_content_must_be_stored(start: Start, engine: AsyncEngine) -> None:
    service, exchange = await start(), private(admitted())
    with pytest.raises(Unavailable) as caught:
        await service.intent(exchange)
    assert (caught.value.code, caught.value.status) == ("content_key_missing", 503)
    await service.completion(finished(exchange, status=503, failure=Failure(503, "content_key_missing", "m")))
    assert await read(engine, service, exchange) == []


async def test_a_refused_request_is_recorded_without_a_key_as_well(start: Start, engine: AsyncEngine) -> None:
    service = await start()
    exchange = refused(advance(private(admitted()), Targeted), "tokens_rate_limited", 429)
    await service.intent(exchange)
    await service.completion(exchange)
    assert await read(engine, service, exchange) == []


async def test_another_tenant_finds_nothing(start: Start, engine: AsyncEngine) -> None:
    service, exchange = await start(sealer=sealer()), private(admitted())
    await recorded(service, exchange)
    assert await reader(engine, service).of_request(exchange.request_id, tenant="rival") is None


async def test_a_prompt_that_only_a_fallback_asked_for_comes_with_the_answer(start: Start, engine: AsyncEngine) -> None:
    service, exchange = await start(sealer=sealer()), admitted()
    await service.intent(exchange)
    await service.completion(finished(private(exchange), completion_contents=((TextPart(ANSWER),),)))
    assert sorted(one.kind for one in await read(engine, service, exchange)) == ["prompt", "response"]


def incompressible(size: int) -> str:
    return secrets.token_urlsafe(size * 3 // 4)


def test_the_largest_envelope_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "MAX_BYTES", 1000)
    with pytest.raises(ContentTooLarge):
        sealer().seal("prompt", {"prompt": incompressible(2000)}, REQUEST, "acme", NOW)


async def test_a_large_text_passes_through_spool_and_postgres(start: Start, engine: AsyncEngine) -> None:
    service, large = await start(sealer=sealer()), incompressible(3_000_000)
    request = ChatRequest("auto", (Message.of_text("user", large),))
    exchange = private(admitted(request=request))
    await recorded(service, exchange, completion_contents=((TextPart(large),),))
    assert [one.state for one in await read(engine, service, exchange)] == ["readable", "readable"]


async def test_a_prompt_too_large_to_be_recorded_is_refused_and_an_answer_is_cut(
    start: Start, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "MAX_BYTES", 2000)
    service, large = await start(sealer=sealer()), incompressible(9000)
    request = ChatRequest("auto", (Message.of_text("user", large),))
    with pytest.raises(RequestTooLarge):
        await service.intent(private(admitted(request=request)))
    exchange = private(admitted())
    await recorded(service, exchange, completion_contents=((TextPart(large),),))
    _, answer = await read(engine, service, exchange)
    assert answer.content["truncated"] is True
    assert large.startswith(answer.content["choices"][0])
