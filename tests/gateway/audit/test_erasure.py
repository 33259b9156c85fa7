"""An erasure is on record: which rows were emptied, never whose. Emptied rows that no such record names are seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.audit.canonical import CommitmentKey, parse_json
from gateway.audit.committed import emptied
from gateway.audit.erasure import Erased, Tell, erase, facts_of
from gateway.audit.event import Origin
from gateway.audit.notices import interrupted_record
from gateway.audit.ranges import merged
from gateway.audit.service import AuditService
from gateway.audit.verify import verify
from gateway.cli.on_record import cli_event
from gateway.flow.context import SystemClock, SystemIds
from tests.fakes.exchanges import ANA, admitted, finished

LUIS = replace(ANA, subject="luis")
EMPTY = "UPDATE audit_event SET subject = NULL, personal = NULL, personal_salt = NULL WHERE {which}"
EMPTY_ABOUT = "UPDATE audit_event SET personal = personal - ARRAY['target','reason','diff','about_salt'] WHERE {which}"


@pytest.fixture
async def trail(service: AuditService) -> AuditService:
    """Two people in turn: Ana has 2, 3, 6 and 7, Luis 4, 5, 8 and 9; 10 is an administrator's record about Ana."""
    for principal in (ANA, LUIS, ANA, LUIS):
        exchange = admitted(principal)
        await service.intent(exchange)
        await service.completion(finished(exchange))
    await service.admin(cli_event("test", "grant", tenant="acme", reason=f"asked by {ANA.subject}", diff={"a": 1}))
    await service.settle(5)
    return service


async def erase_ana(engine: AsyncEngine, tell: Tell) -> Erased:
    return await erase(engine, tenant=ANA.tenant, issuer=ANA.issuer, subject=ANA.subject, tell=tell)


async def update(engine: AsyncEngine, statement: str, which: str) -> None:
    async with engine.begin() as connection:
        assert (await connection.exec_driver_sql(statement.format(which=which))).rowcount > 0


async def problems(engine: AsyncEngine, service: AuditService, **more: Any) -> list[tuple[str, int]]:
    chains = verify(engine, key=service.commitment_key, **more)
    return [(one.kind, one.node_seq) async for report in chains for one in report.problems]


async def test_what_was_erased_is_on_record_without_the_name(
    trail: AuditService, engine: AsyncEngine, rows: Any
) -> None:
    assert await erase_ana(engine, trail.tell_erased) == Erased(own=4, mentions=1, contents=0, quarantined=0)
    await trail.settle(5)
    records = [row["rec"] for row in await rows("phase = 'system' AND action = 'audit.erase'")]
    own, _ = trail.boots
    assert [parse_json(rec)["system"] for rec in records] == [
        {"group": "own", "chains": [{"boot": str(own), "ranges": [[2, 3], [6, 7]]}]},
        {"group": "about", "chains": [{"boot": str(own), "ranges": [[10, 10]]}]},
    ]
    assert not any(ANA.subject.encode() in rec for rec in records)
    assert await problems(engine, trail) == []
    (first, *_) = await rows()
    assert await problems(engine, trail, start=first["ts"]) == []


@pytest.mark.parametrize(
    ("statement", "seq"), [(EMPTY, 5), (EMPTY, 10), (EMPTY_ABOUT, 10)], ids=["request", "admin", "about"]
)
async def test_rows_that_somebody_else_emptied_are_named(
    trail: AuditService, engine: AsyncEngine, statement: str, seq: int
) -> None:
    """Through the trigger, which lets an erasure pass."""
    await update(engine, statement, f"node_seq = {seq}")
    found = await problems(engine, trail)
    assert set(found) == {("erased_without_record", seq)}


async def test_a_record_covers_its_rows_and_its_group_only(trail: AuditService, engine: AsyncEngine) -> None:
    await erase_ana(engine, trail.tell_erased)
    await trail.settle(5)
    await update(engine, EMPTY, "node_seq IN (8, 10)")
    assert set(await problems(engine, trail)) == {("erased_without_record", 8), ("erased_without_record", 10)}


def test_the_end_of_an_interrupted_request_commits_to_nothing_that_was_erased_before() -> None:
    intent: dict[str, Any] = {"request_id": "r", "boot": "b", "event_id": "e", "ts": "t"}
    intent |= {"decision": {"effect": "allow", "commit": {"policy_reason": "x"}}}
    origin = Origin("node-a", SystemIds().uuid7(), "0", CommitmentKey(bytes(32)))
    record = interrupted_record(origin, SystemIds().uuid7(), SystemClock().now(), intent, {})
    document = parse_json(record.rec)
    assert list(emptied(document, {"subject": None, "personal": None})) == []


async def test_nothing_is_erased_that_cannot_be_put_on_record(
    trail: AuditService, engine: AsyncEngine, rows: Any
) -> None:
    async def refuse(_facts: dict[str, Any]) -> None:
        raise OSError("the spool is full")

    with pytest.raises(OSError, match="full"):
        await erase_ana(engine, refuse)
    assert len(await rows("subject = :name", name=ANA.subject)) == 4
    assert await problems(engine, trail) == []


async def test_numbers_are_told_as_ranges_so_many_to_a_record(trail: AuditService) -> None:
    own, _ = trail.boots
    facts = list(facts_of("own", [(own, seq) for seq in range(2, 10_002, 2)]))
    assert [len(one["chains"][0]["ranges"]) for one in facts] == [2000, 2000, 1000]


def test_ranges_hold_the_numbers_that_they_were_made_of() -> None:
    found = merged([(7, 9), (1, 3), (2, 4), (5, 5)])
    assert found.pairs() == [[1, 5], [7, 9]]
    assert [number for number in range(12) if number in found] == [1, 2, 3, 4, 5, 7, 8, 9]
