"""Runs of the gateway are links of the trail: what is done to one of them is told by the others."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.audit.canonical import CommitmentKey, chain_hash, parse_json
from gateway.audit.chain_walker import Problem
from gateway.audit.heads import Head, parse_kept
from gateway.audit.service import AuditService
from gateway.audit.shipped import read_shipped
from gateway.audit.verify import ChainReport, verify
from gateway.errors import ConfigError
from gateway.storage.postgres import make_engine
from tests.fakes.exchanges import admitted, finished


async def work(service: AuditService, requests: int = 2) -> None:
    for _ in range(requests):
        exchange = admitted()
        await service.intent(exchange)
        await service.completion(finished(exchange))
    await service.settle(5)


async def die(service: AuditService) -> None:
    """As a kill -9 would leave it: nothing is written, removed or told any more."""
    for task in service._tasks:
        task.cancel()
    await asyncio.gather(*service._tasks, return_exceptions=True)
    await service._spool.close()
    service._shipping.release()
    assert service._boot is not None
    service._boot.release()
    service._boot = None


async def reports(engine: AsyncEngine, key: CommitmentKey | None, **more: Any) -> list[ChainReport]:
    return [report async for report in verify(engine, key=key, **more)]


async def problems(engine: AsyncEngine, key: CommitmentKey | None, **more: Any) -> list[tuple[str, int]]:
    found: list[Problem] = [one for report in await reports(engine, key, **more) for one in report.problems]
    return [(problem.kind, problem.node_seq) for problem in found]


async def tamper(engine: AsyncEngine, statement: str, **values: Any) -> None:
    async with engine.begin() as connection:
        await connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        changed = await connection.exec_driver_sql(statement.format(**values))
        assert changed.rowcount > 0


def heads(found: list[ChainReport]) -> tuple[Head, ...]:
    return tuple(Head(one.node_id, one.boot_id, one.last_seq, bytes.fromhex(one.head)) for one in found)


@pytest.fixture(params=["stopped", "killed"])
async def two_runs(request: Any, start: Any) -> AuditService:
    """The second of two runs of one spool; the first was stopped or killed."""
    first = await start(mode="strict")
    await work(first)
    await (first.close() if request.param == "stopped" else die(first))
    second: AuditService = await start(mode="strict")
    await work(second)
    return second


async def test_a_run_names_where_the_run_before_it_ended(
    two_runs: AuditService, rows: Any, engine: AsyncEngine
) -> None:
    first, second = [parse_json(row["rec"]) for row in await rows("node_seq = 1")]
    (last,) = await rows(f"boot_id = '{first['boot']}' AND node_seq = 5")
    assert (first["what"]["action"], first["system"]["begins"], first["system"]["previous"]) == (
        "audit.start",
        True,
        [],
    )
    (named,) = second["system"]["previous"]
    assert (second["system"]["begins"], second["system"]["line"]) == (False, first["system"]["line"])
    assert (named["boot"], named["seq"], named["hash"]) == (first["boot"], 5, last["hash"].hex())
    assert await problems(engine, two_runs.commitment_key) == []


async def test_a_run_that_is_deleted_is_missed(two_runs: AuditService, engine: AsyncEngine) -> None:
    own, _ = two_runs.boots
    await tamper(engine, "DELETE FROM audit_event WHERE boot_id <> '{own}'", own=own)
    assert await problems(engine, two_runs.commitment_key) == [("missing_run", 1)]


async def test_the_tail_of_a_run_that_is_over_is_missed(two_runs: AuditService, engine: AsyncEngine) -> None:
    own, _ = two_runs.boots
    await tamper(engine, "DELETE FROM audit_event WHERE boot_id <> '{own}' AND node_seq > 3", own=own)
    assert await problems(engine, two_runs.commitment_key) == [("cut_tail", 4)]


async def test_a_row_forged_behind_the_end_of_a_run_is_found(
    two_runs: AuditService, engine: AsyncEngine, rows: Any
) -> None:
    own, _ = two_runs.boots
    (last,) = await rows(f"boot_id <> '{own}' AND node_seq = 5")
    document = {**parse_json(last["rec"]), "event_id": "01a22de4-036b-71ec-ab41-31af08a57f6d"}
    rec = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    names = [name for name in last if name not in ("event_id", "node_seq", "rec", "prev_hash", "hash", "seal_id")]
    forged = chain_hash(last["hash"], 6, rec)
    await tamper(
        engine,
        f"INSERT INTO audit_event (event_id, node_seq, rec, prev_hash, hash, {', '.join(names)}) "
        f"SELECT '{document['event_id']}', 6, '\\x{rec.hex()}', hash, '\\x{forged.hex()}', {', '.join(names)} "
        f"FROM audit_event WHERE event_id = '{last['event_id']}'",
    )
    assert await problems(engine, two_runs.commitment_key) == [("appended", 6)]


async def rewrite(engine: AsyncEngine, rows: Any, boot: Any, *, without: int) -> None:
    """The chain of a run without one record: numbers and hashes made anew, as only the database needs it."""
    found = [dict(row) for row in await rows(f"boot_id = '{boot}'")]
    head = found[without - 1]["prev_hash"]
    await tamper(
        engine, "DELETE FROM audit_event WHERE boot_id = '{boot}' AND node_seq = {seq}", boot=boot, seq=without
    )
    for seq, row in enumerate(found[without:], start=without):
        own = chain_hash(head, seq, row["rec"])
        await tamper(
            engine,
            "UPDATE audit_event SET node_seq = {seq}, prev_hash = '\\x{prev}', hash = '\\x{own}' "
            "WHERE event_id = '{id}'",
            seq=seq, prev=head.hex(), own=own.hex(), id=row["event_id"],
        )  # fmt: skip
        head = own


async def test_a_chain_rewritten_without_one_record_is_found(
    two_runs: AuditService, engine: AsyncEngine, rows: Any
) -> None:
    first, _ = [row["boot_id"] for row in await rows("node_seq = 1")]
    await rewrite(engine, rows, first, without=3)
    assert await problems(engine, two_runs.commitment_key) == [("cut_tail", 5)]


async def test_a_chain_with_its_first_record_gone_and_renumbered_is_found(
    two_runs: AuditService, engine: AsyncEngine, rows: Any
) -> None:
    own, _ = two_runs.boots
    await rewrite(engine, rows, own, without=1)
    assert ("no_start", 1) in await problems(engine, two_runs.commitment_key)


async def test_a_first_record_that_forgets_the_run_before_is_not_authentic(
    two_runs: AuditService, engine: AsyncEngine, rows: Any
) -> None:
    own, _ = two_runs.boots
    (row,) = await rows(f"boot_id = '{own}' AND node_seq = 1")
    document = parse_json(row["rec"])
    document["system"] |= {"previous": [], "known": [], "begins": True}
    forged = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    await tamper(engine, "DELETE FROM audit_event WHERE boot_id <> '{own}'", own=own)
    head = row["prev_hash"]
    for one in await rows(f"boot_id = '{own}'"):
        rec = forged if one["node_seq"] == 1 else one["rec"]
        hashed = chain_hash(head, one["node_seq"], rec)
        await tamper(
            engine,
            "UPDATE audit_event SET rec = '\\x{rec}', prev_hash = '\\x{prev}', hash = '\\x{own}' "
            "WHERE event_id = '{id}'",
            rec=rec.hex(), prev=head.hex(), own=hashed.hex(), id=one["event_id"],
        )  # fmt: skip
        head = hashed
    assert await problems(engine, two_runs.commitment_key) == [("not_authentic", 1)]


async def test_a_replica_names_the_runs_that_it_finds_in_the_database(
    start: Any, engine: AsyncEngine, rows: Any
) -> None:
    first = await start(mode="strict")
    await work(first)
    other = await start(mode="strict", node_id="node-b", spool="other")
    own, _ = first.boots
    await first.close()
    await other.settle(5)
    await tamper(engine, "DELETE FROM audit_event WHERE boot_id = '{own}'", own=own)
    assert await problems(engine, other.commitment_key) == [("missing_run", 1)]
    (document,) = [parse_json(row["rec"]) for row in await rows("node_id = 'node-b'")]
    assert document["system"]["begins"] is True


async def test_a_seal_names_how_far_a_run_has_come(start: Any, engine: AsyncEngine, rows: Any) -> None:
    service = await start(mode="strict")
    await work(service)
    await service._run.seal()
    await service._run.seal()  # nothing but the seal was written since
    await service.settle(5)
    (seal,) = await rows("action = 'audit.seal'")
    assert parse_json(seal["rec"])["system"]["heads"][0]["seq"] == 5
    assert service.status()["sealed_seq"] == 5
    own, _ = service.boots
    await rewrite(engine, rows, own, without=3)
    assert await problems(engine, service.commitment_key) == [("head_mismatch", 5)]


async def test_a_run_without_a_database_names_no_others_and_begins_all_the_same(
    start: Any, engine: AsyncEngine, rows: Any, database_url: str
) -> None:
    away = make_engine("postgresql+asyncpg://nobody:x@127.0.0.1:1/none", connect_timeout_s=1)
    first = await start(mode="strict", into=away)
    await first.close()
    await away.dispose()
    second = await start(mode="strict")
    await work(second, 1)
    documents = [parse_json(row["rec"]) for row in await rows("action = 'audit.start'")]
    assert [document["system"]["known"] for document in documents] == [None, []]
    assert await problems(engine, second.commitment_key) == []


async def test_heads_kept_outside_find_what_was_done_to_the_newest_run(start: Any, engine: AsyncEngine) -> None:
    service = await start(mode="strict")
    await work(service)
    kept = heads(await reports(engine, service.commitment_key))
    await service.close()
    key = service.commitment_key
    assert await problems(engine, key, kept=kept) == []
    await tamper(engine, "DELETE FROM audit_event WHERE node_seq = 5")
    assert await problems(engine, key) == []
    assert await problems(engine, key, kept=kept) == [("cut_tail", 5)]
    await tamper(engine, "DELETE FROM audit_event")
    assert await problems(engine, key, kept=kept) == [("missing_run", 1)]


async def test_what_still_waits_in_a_spool_is_not_missing(
    two_runs: AuditService, engine: AsyncEngine, rows: Any
) -> None:
    first, _ = [row["boot_id"] for row in await rows("node_seq = 1")]
    await tamper(engine, "DELETE FROM audit_event WHERE boot_id = '{first}' AND node_seq > 3", first=first)
    assert await problems(engine, two_runs.commitment_key, waiting={first: 5}) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"chains": [{}]}', '{"chains": [{"node_id": "a", "boot_id": "x"}]}'])
def test_a_file_without_heads_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no heads"):
        parse_kept(text, source="heads.json")


@pytest.mark.parametrize("which", ["true", "node_seq > 3", "node_seq = 5"])
@pytest.mark.parametrize("state", ["living", "killed"])
async def test_rows_of_the_newest_run_that_are_gone_are_missed_by_its_spool(
    start: Any, engine: AsyncEngine, spool_dir: Any, which: str, state: str
) -> None:
    service = await start(mode="strict")
    await work(service)
    key, own = service.commitment_key, service.boots[0]
    if state == "killed":
        await die(service)
    shipped = read_shipped(spool_dir)
    assert dict(shipped.upto) == {own: 5}
    assert await problems(engine, key, shipped=shipped.upto) == []
    await tamper(engine, f"DELETE FROM audit_event WHERE {which}")
    kind, first = {"true": ("missing_run", 1), "node_seq > 3": ("cut_tail", 4), "node_seq = 5": ("cut_tail", 5)}[which]
    assert await problems(engine, key, shipped=shipped.upto) == [(kind, first)]
    # That other records of the run still wait does not explain it.
    assert await problems(engine, key, shipped=shipped.upto, waiting={own: 9}) == [(kind, first)]


async def test_records_that_wait_in_a_spool_are_not_missed(start: Any, engine: AsyncEngine, spool_dir: Any) -> None:
    service = await start(into=make_engine("postgresql://nobody:x@127.0.0.1:1/none"))
    await work(service)
    assert dict(read_shipped(spool_dir).upto) == {service.boots[0]: 0}
    assert await problems(engine, service.commitment_key, shipped=read_shipped(spool_dir).upto) == []
