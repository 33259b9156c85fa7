"""Rows in `audit_quarantine`: a gateway that puts one there says so in the trail; whoever else does has hidden it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from typer.testing import CliRunner, Result

from gateway.audit.canonical import CommitmentKey, parse_json
from gateway.audit.service import AuditService
from gateway.audit.verify import verify
from gateway.cli import audit as cli
from tests.fakes.exchanges import admitted, finished

MOVE = """
WITH moved AS (DELETE FROM audit_event WHERE {which} RETURNING *)
INSERT INTO audit_quarantine (node_id, boot_id, node_seq, rec, prev_hash, hash, error, side)
SELECT node_id, boot_id, node_seq, rec, prev_hash, hash, 'DataError', '' FROM moved
"""


async def record(service: AuditService, requests: int = 3) -> None:
    for _ in range(requests):
        exchange = admitted()
        await service.intent(exchange)
        await service.completion(finished(exchange))
    await service.settle(5)


async def move(engine: AsyncEngine, which: str) -> None:
    async with engine.begin() as connection:
        await connection.exec_driver_sql("SET LOCAL session_replication_role = replica")  # triggers off
        assert (await connection.exec_driver_sql(MOVE.format(which=which))).rowcount > 0


async def until_counted(service: AuditService, rows: int) -> None:
    for _ in range(400):
        if service.status()["quarantined"] == rows:
            return
        await asyncio.sleep(0.05)
    pytest.fail(f"not counted: {service.status()}")


async def problems(engine: AsyncEngine, key: CommitmentKey | None) -> list[tuple[str, int]]:
    return [(one.kind, one.node_seq) async for report in verify(engine, key=key) for one in report.problems]


async def refuse(engine: AsyncEngine, condition: str) -> None:
    async with engine.begin() as connection:
        await connection.execute(text(f"ALTER TABLE audit_event ADD CONSTRAINT refuses CHECK ({condition}) NOT VALID"))


@pytest.fixture
def esclusa_verify(spool_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("ESCLUSA_AUDIT__SPOOL_DIR", str(spool_dir))

    async def run(*words: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, cli.app, ["verify", *words])

    return run


async def test_rows_that_somebody_moved_to_the_quarantine_are_missing(
    service: AuditService, engine: AsyncEngine, esclusa_verify: Any
) -> None:
    await record(service)
    await move(engine, "node_seq IN (4, 5)")
    assert await problems(engine, service.commitment_key) == [("missing", 4), ("missing", 5)]
    answer = await esclusa_verify()
    assert (answer.exit_code, "2 rows in audit_quarantine" in answer.stdout) == (3, True)


@pytest.mark.parametrize("which", ["node_seq >= 6", "phase <> 'system'", "true"])
async def test_the_end_of_a_chain_and_a_whole_chain_are_not_hidden_there_either(
    service: AuditService, engine: AsyncEngine, which: str
) -> None:
    await record(service)
    await move(engine, which)
    kinds = {kind for kind, _ in await problems(engine, service.commitment_key)}
    assert kinds == {"missing"}


async def test_rows_that_postgres_refused_are_named_and_exit_4(
    start: Any, engine: AsyncEngine, esclusa_verify: Any
) -> None:
    await refuse(engine, "phase <> 'completion'")
    service = await start(mode="strict")
    await record(service, 2)
    await service.settle(5)
    assert await problems(engine, service.commitment_key) == [("quarantined", 3), ("quarantined", 5)]
    await service.close()
    answer = await esclusa_verify("--json")
    assert answer.exit_code == 4
    assert json.loads(answer.stdout)["quarantine"]["rows"] == 2


async def test_a_record_vouches_for_the_row_that_it_names_and_for_no_other(
    start: Any, engine: AsyncEngine, rows: Any
) -> None:
    await refuse(engine, "phase <> 'completion'")
    service = await start(mode="strict")
    await record(service, 2)
    await service.settle(5)
    await move(engine, "phase = 'intent' AND node_seq = 2")
    assert await problems(engine, service.commitment_key) == [
        ("missing", 2), ("quarantined", 3), ("quarantined", 5)
    ]  # fmt: skip


async def test_a_refused_record_of_a_refused_row_ends_it(start: Any, engine: AsyncEngine) -> None:
    await refuse(engine, "phase = 'system' AND action = 'audit.start'")
    service = await start(mode="strict")
    await record(service, 1)
    await service.settle(5)
    async with engine.connect() as connection:
        recs = (await connection.exec_driver_sql("SELECT rec FROM audit_quarantine ORDER BY node_seq")).scalars().all()
    told = [parse_json(rec)["system"]["row"]["seq"] for rec in recs if parse_json(rec)["phase"] == "system"]
    assert told == [2, 3]


async def test_rows_that_others_put_there_show_in_the_state_of_the_gateway(
    service: AuditService, engine: AsyncEngine
) -> None:
    await record(service)
    assert service.status()["quarantined"] == 0
    await move(engine, "node_seq = 4")
    service._shipping._count_due_s = 0.0  # the minute is over
    await record(service, 1)
    await until_counted(service, 1)
