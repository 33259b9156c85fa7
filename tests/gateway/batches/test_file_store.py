"""Files over a real Postgres: chunks, encryption at rest, quotas, owners and expiry."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.batches.batch_store import NewBatch
from gateway.batches.file_store import CHUNK
from gateway.batches.tables import batch_line, stored_chunk, stored_file
from gateway.batches.values import Origin, Owner, principal_from_json, principal_to_json
from gateway.errors import Conflict, InvalidRequest, NotFound, RateLimited, RequestTooLarge, Unavailable
from gateway.flow.values import Principal
from tests.gateway.batches.conftest import ANA, ENDPOINT, EVA, SETTINGS, Node

OWN = Owner.of(ANA)
NOON = datetime(2026, 1, 5, 12, 0, 0, 123456, tzinfo=UTC)


async def whole(node: Node, file_id: str) -> bytes:
    return b"".join([piece async for piece in node.files.content(await node.files.get(OWN, file_id))])


@pytest.mark.parametrize("size", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7])
async def test_a_file_comes_back_as_it_was_whole_and_in_parts(node: Node, size: int) -> None:
    content = secrets.token_bytes(size)
    file = await node.store(content)
    assert file.bytes == size
    assert await whole(node, file.id) == content
    start = max(0, size - CHUNK - 3)
    assert await node.files.read(file.id, start, size - start) == content[start:]


async def test_content_is_encrypted_at_rest_and_bound_to_its_place(node: Node, engine: AsyncEngine) -> None:
    first, second = await node.store(b"a very secret text"), await node.store(b"another secret one")
    async with engine.begin() as connection:
        stored = (await connection.execute(sa.select(stored_chunk.c.content))).scalars().all()
        assert not [one for one in stored if b"secret" in one]
        other = sa.select(stored_chunk).where(stored_chunk.c.file_id == second.id)
        row = (await connection.execute(other)).one()
        moved = {"content": row.content, "salt": row.salt, "key_id": row.key_id}
        await connection.execute(sa.update(stored_chunk).where(stored_chunk.c.file_id == first.id).values(**moved))
    with pytest.raises(Unavailable) as damaged:
        await whole(node, first.id)
    assert damaged.value.code == "content_damaged"
    assert await whole(node, second.id) == b"another secret one"


async def test_results_are_encrypted_at_rest(node: Node, engine: AsyncEngine) -> None:
    batch = await node.batch("a")
    node.worker.start()
    await node.ended(batch)
    async with engine.connect() as connection:
        (kept,) = (await connection.execute(sa.select(batch_line.c.result))).scalars().all()
    assert kept is not None
    assert b"chat.completion" not in kept


async def test_an_owner_has_a_quota_of_bytes(engine: AsyncEngine) -> None:
    node = Node(engine, SETTINGS.model_copy(update={"max_bytes_per_owner": 100}))
    await node.store(b"x" * 60)
    with pytest.raises(RequestTooLarge) as refused:
        await node.store(b"x" * 60)
    assert refused.value.code == "file_quota_exceeded"
    await node.store(b"x" * 60, EVA)  # somebody else's quota


async def test_an_owner_has_a_bound_of_files_and_of_batches(engine: AsyncEngine) -> None:
    node = Node(engine, SETTINGS.model_copy(update={"max_files_per_owner": 2}))
    batch = await node.batch("a")
    await node.batches.cancel(OWN, batch.id)
    ended = await node.batches.settle(batch.id)
    assert ended is not None
    with pytest.raises(RequestTooLarge) as refused:
        await node.store(b"{}")  # the input, and what the cancelled batch tells
    assert refused.value.code == "file_quota_exceeded"
    await node.files.delete(OWN, str(ended.error_file_id))
    other = await node.store(b"{}")
    await node.batches.create(ANA, NewBatch(other.id, ENDPOINT, {}), Origin())
    with pytest.raises(RateLimited) as too_many:
        await node.batches.create(ANA, NewBatch(other.id, ENDPOINT, {}), Origin())
    assert too_many.value.code == "too_many_batches"


async def test_who_has_no_room_left_makes_no_batch(engine: AsyncEngine) -> None:
    node = Node(engine, SETTINGS.model_copy(update={"max_bytes_per_owner": 200}))
    file = await node.store(b"x" * 100)
    async with engine.begin() as connection:
        await connection.execute(sa.update(stored_file).values(bytes=201))
    with pytest.raises(RequestTooLarge):
        await node.batches.create(ANA, NewBatch(file.id, ENDPOINT, {}), Origin())


async def test_an_owner_has_a_bound_of_open_batches(engine: AsyncEngine) -> None:
    node = Node(engine, SETTINGS.model_copy(update={"max_open_per_owner": 1}))
    batch = await node.batch("a")
    with pytest.raises(RateLimited) as refused:
        await node.batch("b")
    assert refused.value.code == "too_many_batches"
    await node.batches.cancel(OWN, batch.id)
    await node.batches.settle(batch.id)
    await node.batch("c")


async def test_nobody_else_finds_a_file(node: Node) -> None:
    file = await node.store(b"{}")
    for other in (EVA, Principal("globex", ANA.issuer, ANA.subject), Principal(ANA.tenant, "https://b", ANA.subject)):
        with pytest.raises(NotFound):
            await node.files.get(Owner.of(other), file.id)
        with pytest.raises(NotFound):
            await node.files.delete(Owner.of(other), file.id)
        with pytest.raises(NotFound):
            await node.batches.create(other, NewBatch(file.id, ENDPOINT, {}), Origin())


async def test_pages_follow_one_another_in_both_orders(node: Node) -> None:
    made = [(await node.store(b"{}")).id for _ in range(5)]
    for ascending, expected in ((True, made), (False, made[::-1])):
        first = await node.files.page(OWN, after=None, limit=3, ascending=ascending, purpose="batch")
        rest = await node.files.page(OWN, after=first[-1].id, limit=3, ascending=ascending, purpose=None)
        assert [file.id for file in (*first, *rest)] == expected


async def test_an_upload_that_came_to_nothing_leaves_nothing(node: Node, engine: AsyncEngine) -> None:
    file = node.files.new(OWN, "batch")
    await node.files.begin(file)
    await node.files.append(file, 0, b"half", (4, 0))
    with pytest.raises(NotFound):
        await node.files.get(OWN, file.id)
    await node.files.abandon(file)
    async with engine.connect() as connection:
        assert (await connection.execute(sa.select(sa.func.count()).select_from(stored_chunk))).scalar() == 0


async def test_expired_files_are_removed_but_not_under_an_open_batch(node: Node, engine: AsyncEngine) -> None:
    batch, other = await node.batch("a"), await node.store(b"{}")
    async with engine.begin() as connection:
        await connection.execute(sa.update(stored_file).values(expires_at=sa.func.now() - timedelta(seconds=5)))
    with pytest.raises(NotFound):
        await node.files.get(OWN, other.id)
    assert [file.id for file in await node.files.expired(9)] == [other.id]
    await node.files.remove(await node.files.expired(9))
    await node.batches.cancel(OWN, batch.id)
    await node.batches.settle(batch.id)
    assert [file.id for file in await node.files.expired(9)] == [batch.input_file_id]


async def test_deleting_the_output_deletes_the_results_and_leaves_the_errors(node: Node, engine: AsyncEngine) -> None:
    batch = await node.batch("a")
    with pytest.raises(Conflict):
        await node.files.delete(OWN, batch.input_file_id)
    node.worker.start()
    ended = await node.ended(batch)
    with pytest.raises(InvalidRequest):
        await node.batches.create(ANA, NewBatch(str(ended.output_file_id), ENDPOINT, {}), Origin())
    await node.files.delete(OWN, str(ended.output_file_id))
    async with engine.connect() as connection:
        assert (await connection.execute(sa.select(batch_line.c.number))).scalars().all() == []
    assert (await node.now(batch)).completed == 1
    await node.files.delete(OWN, batch.input_file_id)


def test_a_principal_comes_back_as_it_was_kept() -> None:
    every = Principal(
        "acme",
        "https://idp",
        "ana",
        roles=frozenset({"a", "b"}),
        groups=frozenset({"g"}),
        narrowed_models=(),
        owner=("https://idp", "eva"),
        issued_at=NOON,
        expires_at=NOON,
    )
    for principal in (every, ANA):
        assert principal_from_json(principal_to_json(principal)) == principal
