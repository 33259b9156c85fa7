"""Tampering with the trail: whatever a database administrator changes behind the trigger's back is named."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.audit.chain_walker import Problem
from gateway.audit.service import AuditService
from gateway.audit.verify import verify
from tests.fakes.exchanges import admitted, finished

Tamper = Callable[[str], Awaitable[list[Problem]]]


@pytest.fixture
async def trail(service: AuditService) -> AuditService:
    for _ in range(5):
        exchange = admitted()
        await service.intent(exchange)
        await service.completion(finished(exchange))
    await service.settle(5)
    return service


@pytest.fixture
def tamper(trail: AuditService, engine: AsyncEngine) -> Tamper:
    async def change(statement: str) -> list[Problem]:
        async with engine.begin() as connection:
            await connection.exec_driver_sql("SET LOCAL session_replication_role = replica")  # triggers off
            changed = await connection.exec_driver_sql(statement)
            assert changed.rowcount > 0
        return [problem async for report in verify(engine, key=trail.commitment_key) for problem in report.problems]

    return change


async def test_an_untouched_trail_has_no_problem(trail: AuditService, engine: AsyncEngine) -> None:
    (report,) = [report async for report in verify(engine, key=trail.commitment_key)]
    assert (report.first_seq, report.last_seq, report.checked, report.problems) == (1, 11, 11, ())


@pytest.mark.parametrize(
    ("statement", "kind", "seq"),
    [
        ("UPDATE audit_event SET rec = set_byte(rec, 40, get_byte(rec, 40) # 1) WHERE node_seq = 4",
         "hash_mismatch", 4),
        ("UPDATE audit_event SET hash = set_byte(hash, 0, get_byte(hash, 0) # 1) WHERE node_seq = 4",
         "hash_mismatch", 4),
        ("DELETE FROM audit_event WHERE node_seq = 4", "missing", 4),
        ("DELETE FROM audit_event WHERE node_seq = 1", "missing", 1),
        ("UPDATE audit_event SET node_seq = 40 WHERE node_seq = 10", "missing", 10),
        ("UPDATE audit_event SET node_seq = CASE node_seq WHEN 4 THEN 5 ELSE 4 END WHERE node_seq IN (4, 5)",
         "broken_link", 4),
        ("UPDATE audit_event SET decision = 'deny' WHERE node_seq = 4", "column_mismatch", 4),
        ("UPDATE audit_event SET tokens_out = 1 WHERE node_seq = 4", "column_mismatch", 4),
        ("UPDATE audit_event SET subject = 'u-1' WHERE node_seq = 4", "personal_mismatch", 4),
        ("UPDATE audit_event SET personal = personal || '{\"display\": \"x\"}' WHERE node_seq = 4",
         "personal_mismatch", 4),
        ("UPDATE audit_event SET subject = 'innocent', personal = NULL, personal_salt = NULL WHERE node_seq = 4",
         "personal_mismatch", 4),
        ("UPDATE audit_event SET personal = '{\"display\": \"Eva\"}', personal_salt = NULL WHERE node_seq = 4",
         "personal_mismatch", 4),
        ("UPDATE audit_event SET subject = NULL WHERE node_seq = 4", "personal_mismatch", 4),
        ("UPDATE audit_event SET subject = NULL, personal = NULL, personal_salt = NULL WHERE node_seq = 4",
         "erased_without_record", 4),
        ("UPDATE audit_event SET subject = NULL, personal = NULL WHERE node_seq = 4", "erased_without_record", 4),
        ("UPDATE audit_event SET personal = personal - 'display' WHERE node_seq = 4", "personal_mismatch", 4),
    ],
)  # fmt: skip
async def test_each_way_of_tampering_is_found_at_its_row(tamper: Tamper, statement: str, kind: str, seq: int) -> None:
    problems = await tamper(statement)
    assert (kind, seq) in [(problem.kind, problem.node_seq) for problem in problems]
    assert problems[0].node_seq == seq


async def test_an_inserted_row_is_found(tamper: Tamper) -> None:
    names = "ts, request_id, phase, schema_version, node_id, boot_id, tenant, issuer, principal_type, route, decision"
    problems = await tamper(
        f"INSERT INTO audit_event (event_id, node_seq, rec, prev_hash, hash, {names}) "
        f"SELECT gen_random_uuid(), node_seq, rec, prev_hash, hash, {names} FROM audit_event WHERE node_seq = 4"
    )
    assert {problem.kind for problem in problems} >= {"duplicate"}


async def test_the_newest_chain_cut_at_its_end_is_not_seen_without_a_seal_or_an_outside_copy(tamper: Tamper) -> None:
    assert await tamper("DELETE FROM audit_event WHERE node_seq = 11") == []


async def test_erasure_keeps_the_chain_whole(tamper: Tamper) -> None:
    found = await tamper("UPDATE audit_event SET subject = NULL, personal = NULL, personal_salt = NULL")
    assert {(one.kind, one.node_seq) for one in found} == {("erased_without_record", seq) for seq in range(2, 12)}


async def test_any_flipped_byte_of_any_record_is_found(tamper: Tamper, rows: Any) -> None:
    for row in await rows():
        place = row["node_seq"] * 37 % len(row["rec"])
        flip = f"UPDATE audit_event SET rec = set_byte(rec, {place}, get_byte(rec, {place}) # 4) WHERE node_seq = "
        assert [p.node_seq for p in await tamper(flip + str(row["node_seq"]))] == [row["node_seq"]]
        await tamper(flip + str(row["node_seq"]))  # flip it back
