"""What becomes of the lines of a batch: answered once, waited with, tried again, or told why not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.audit.erasure import erase
from gateway.batches.lifecycle import MAX_ATTEMPTS
from gateway.batches.results import answered_line
from gateway.batches.tables import batch as batch_table
from gateway.batches.tables import batch_line
from gateway.batches.values import Batch, LeasedLine, Owner, Status
from tests.gateway.batches.conftest import ANA, EVA, OK, Node, refusal

A, B = UUID(int=1), UUID(int=2)


async def attempts(engine: AsyncEngine, batch: Batch) -> list[int]:
    async with engine.connect() as connection:
        query = sa.select(batch_line.c.attempts).where(batch_line.c.batch_id == batch.id).order_by(batch_line.c.number)
        return list((await connection.execute(query)).scalars())


async def run_out(engine: AsyncEngine, lease: UUID) -> None:
    async with engine.begin() as connection:
        past = sa.func.clock_timestamp() - sa.text("interval '1 second'")
        await connection.execute(sa.update(batch_line).where(batch_line.c.lease_id == lease).values(lease_until=past))


# ------------------------------------------------------------------------------------------------------ leases


async def test_a_line_has_one_holder_at_a_time(node: Node) -> None:
    batch = await node.batch("only")
    first = await node.lines.claim(A)
    assert first is not None
    assert (first.custom_id, first.attempts, first.batch.principal) == ("only", 1, ANA)
    assert await node.lines.claim(B) is None
    assert await node.lines.renew([A, B]) == {A: "in_progress"}
    assert (await node.now(batch)).completed == 0


async def test_who_was_thought_dead_and_comes_back_writes_nothing(node: Node, engine: AsyncEngine) -> None:
    batch = await node.batch("only")
    late = await node.lines.claim(A)
    assert late is not None
    await run_out(engine, A)
    again = await node.lines.claim(B)
    assert again is not None
    assert (again.number, again.attempts) == (late.number, 2)
    assert await node.lines.finish(late, A, answered_line(batch.id, 1, "only", OK), done=True) is None
    assert await node.lines.renew([A]) == {}
    assert (await node.now(batch)).completed == 0
    assert await node.lines.finish(again, B, answered_line(batch.id, 1, "only", OK), done=True) == 0
    assert await node.lines.finish(again, B, answered_line(batch.id, 1, "only", OK), done=True) is None
    ended = await node.batches.settle(batch.id)
    assert ended is not None
    assert (ended.status, ended.completed) == ("completed", 1)
    assert list(await node.results(ended, ended.output_file_id)) == ["only"]


async def test_two_nodes_share_a_batch_and_ask_each_line_once(node: Node, engine: AsyncEngine) -> None:
    other = Node(engine)
    batch = await node.batch(*(f"c-{number}" for number in range(40)))
    node.worker.start()
    other.worker.start()
    try:
        ended = await node.ended(batch)
    finally:
        await other.worker.close()
    assert (ended.status, ended.completed) == ("completed", 40)
    assert node.route.asked
    assert other.route.asked
    assert sorted(node.route.asked + other.route.asked) == sorted(f"c-{number}" for number in range(40))
    assert set(await attempts(engine, batch)) == {1}


async def test_a_node_that_ends_gives_its_lines_back_at_once(node: Node, engine: AsyncEngine) -> None:
    batch = await node.batch("a", "b")
    node.route.hold = asyncio.Event()
    node.worker.start()
    await node.running(2)
    await node.worker.close()
    assert await attempts(engine, batch) == [0, 0]
    assert await node.lines.claim(A) is not None


async def test_a_line_that_every_node_dies_of_is_told_as_such(node: Node, engine: AsyncEngine) -> None:
    batch = await node.batch("deadly", "fine")
    async with engine.begin() as connection:
        deadly = (batch_line.c.custom_id == "deadly") & (batch_line.c.batch_id == batch.id)
        await connection.execute(sa.update(batch_line).where(deadly).values(attempts=MAX_ATTEMPTS))
    node.worker.start()
    ended = await node.ended(batch)
    assert (ended.completed, ended.failed) == (1, 1)
    assert node.route.asked == ["fine"]
    told = (await node.results(ended, ended.error_file_id))["deadly"]
    assert (told["response"], told["error"]["code"]) == (None, "request_interrupted")


# ---------------------------------------------------------------------------------------------------- answers


async def test_a_full_limit_is_waited_for_and_is_no_result(node: Node, engine: AsyncEngine) -> None:
    batch = await node.batch("a")
    node.route.answers["a"] = [refusal(429, "requests_rate_limited", retry_after="1"), OK]
    node.worker.start()
    paused = await node.until(batch, lambda _: node.route.asked == ["a"])
    assert paused.completed + paused.failed == 0
    ended = await node.ended(batch)
    assert (ended.status, ended.completed, ended.failed) == ("completed", 1, 0)
    assert node.route.asked == ["a", "a"]
    assert await attempts(engine, batch) == [1]  # waiting was no attempt


async def test_a_pause_holds_the_whole_batch_and_no_other(node: Node) -> None:
    paused, free = await node.batch("a", "b"), await node.batch("c", "d")
    await node.lines.pause(paused.id, 600)
    node.worker.start()
    assert (await node.ended(free)).completed == 2
    assert sorted(node.route.asked) == ["c", "d"]


async def test_what_fails_for_a_while_is_tried_again_and_then_told(node: Node, engine: AsyncEngine) -> None:
    batch = await node.batch("comes back", "stays away")
    away = refusal(502, "upstream_failed", retry_after="1")
    node.route.answers = {"comes back": [away, OK], "stays away": [away]}
    async with engine.begin() as connection:
        late = (batch_line.c.custom_id == "stays away") & (batch_line.c.batch_id == batch.id)
        await connection.execute(sa.update(batch_line).where(late).values(attempts=MAX_ATTEMPTS - 1))
    node.worker.start()
    ended = await node.ended(batch)
    assert (ended.completed, ended.failed) == (1, 1)
    assert node.route.asked.count("comes back") == 2
    assert node.route.asked.count("stays away") == 1
    told = (await node.results(ended, ended.error_file_id))["stays away"]
    assert told["response"]["status_code"] == 502


async def test_a_caller_who_may_not_call_any_more_ends_the_batch(node: Node) -> None:
    names = ["a", "b", "c", *(f"d-{number}" for number in range(60))]
    batch = await node.batch(*names)
    node.route.answers["c"] = [refusal(401, "token_revoked")]
    node.worker.start()
    ended = await node.ended(batch)
    assert (ended.status, ended.errors[0].code, ended.errors[0].line) == ("failed", "token_revoked", 3)
    kept, told = await node.results(ended, ended.output_file_id), await node.results(ended, ended.error_file_id)
    assert set(kept) | set(told) == set(names)
    assert "c" in told
    unrun = [one for one in told.values() if one["response"] is None or one["response"]["status_code"] != 401]
    assert {one["error"]["code"] for one in unrun} <= {"batch_failed"}
    assert len(node.route.asked) < len(names)


async def test_a_batch_out_of_time_expires_with_what_it_has(node: Node, engine: AsyncEngine) -> None:
    batch = await node.batch("a", "b")
    first = await node.lines.claim(A)
    assert first is not None
    await node.lines.finish(first, A, answered_line(batch.id, 1, "a", OK), done=True)
    async with engine.begin() as connection:
        over = sa.update(batch_table).values(expires_at=sa.func.clock_timestamp() - sa.text("interval '1 second'"))
        await connection.execute(over.where(batch_table.c.id == batch.id))
    node.worker.start()
    ended = await node.ended(batch)
    assert ended.status == "expired"
    assert node.route.asked == []
    assert list(await node.results(ended, ended.output_file_id)) == ["a"]
    told = await node.results(ended, ended.error_file_id)
    assert {name: one["error"]["code"] for name, one in told.items()} == {"b": "batch_expired"}


async def test_a_cancelled_line_is_stopped_while_it_runs(node: Node) -> None:
    batch = await node.batch("a", "b")
    node.route.hold = asyncio.Event()
    node.worker.start()
    await node.running(2)
    assert (await node.batches.cancel(batch.owner, batch.id)).status == "cancelling"
    ended = await node.ended(batch)
    assert (ended.status, ended.completed, ended.failed) == ("cancelled", 0, 0)
    assert set(await node.results(ended, ended.error_file_id)) == {"a", "b"}


async def test_batches_take_turns(node: Node) -> None:
    long, short = await node.batch(*"abcdefgh"), await node.batch("z")
    claimed = [await node.lines.claim(UUID(int=number)) for number in (1, 2, 3)]
    assert [one.batch.id for one in claimed if one is not None] == [long.id, short.id, long.id]


async def test_what_a_person_keeps_here_is_erased_also_while_it_runs(node: Node, engine: AsyncEngine) -> None:
    batch = await node.batch("a")
    theirs = await node.store(b"{}", EVA)
    held = await node.lines.claim(A)
    assert held is not None

    async def tell(_: object) -> None: ...

    erased = await erase(engine, tenant=ANA.tenant, issuer=ANA.issuer, subject=ANA.subject, tell=tell)
    assert (erased.files, erased.batches) == (1, 1)
    assert await node.lines.finish(held, A, answered_line(batch.id, 1, "a", OK), done=True) is None
    assert await node.batches.page(Owner.of(ANA), after=None, limit=9) == []
    assert (await node.files.get(Owner.of(EVA), theirs.id)).id == theirs.id


async def test_what_is_claimed_while_leases_are_renewed_goes_on(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to a renewal says nothing about lines that were claimed after the question."""
    batch = await node.batch("a", "b")
    node.route.hold = asyncio.Event()
    renew, asked = node.lines.renew, asyncio.Event()

    async def slow(leases: Sequence[UUID]) -> Mapping[UUID, Status]:
        held = await renew(leases)
        if len(leases) == 1:
            asked.set()
            await node.running(2)
        return held

    monkeypatch.setattr(node.lines, "renew", slow)
    claim, claims = node.lines.claim, list[UUID]()

    async def second_later(lease_id: UUID) -> LeasedLine | None:
        claims.append(lease_id)
        if len(claims) > 1:
            await asked.wait()
        return await claim(lease_id)

    monkeypatch.setattr(node.lines, "claim", second_later)
    node.worker.start()
    await node.running(2)
    await asyncio.sleep(0.5)  # more than a renewal takes
    node.route.hold.set()
    assert (await node.ended(batch)).completed == 2
    assert sorted(node.route.asked) == ["a", "b"]
