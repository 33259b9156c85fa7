"""What the pipeline is promised: one intent and one completion per request, in Postgres, in order, in every mode."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from gateway.audit.service import AuditService
from gateway.flow.stages import Received
from gateway.flow.values import ANONYMOUS, AdminEvent, Outcome
from tests.fakes.disks import FaultyDisk
from tests.fakes.exchanges import ANA, admitted, change, context, denied, finished, refused

MODES = ("strict", "standard", "fast")


@pytest.mark.parametrize("mode", MODES)
async def test_a_request_leaves_one_intent_and_one_completion(start: Any, rows: Any, mode: str) -> None:
    service = await start(mode=mode)
    exchange = admitted()
    await service.intent(exchange)
    await service.completion(finished(exchange))
    await service.settle(5)
    found = await rows("request_id = :id", id=exchange.request_id)
    assert [(row["phase"], row["outcome"]) for row in found] == [("intent", None), ("completion", "ok")]
    assert found[1]["tokens_out"] == 12
    assert found[1]["model_served"] == "smollm2-135m-instruct"
    assert found[0]["subject"] == found[1]["subject"] == "u-1042"


async def test_a_denial_has_both_records_with_rule_and_code(service: AuditService, rows: Any) -> None:
    refusal = denied()
    await service.intent(refusal)
    await service.completion(refusal)
    await service.settle(5)
    found = await rows("request_id = :id", id=refusal.request_id)
    assert [(row["phase"], row["decision"], row["deny_code"], row["rule_id"]) for row in found] == [
        ("intent", "deny", "model_not_permitted", "r-9"),
        ("completion", "deny", "model_not_permitted", "r-9"),
    ]


async def test_a_denial_without_an_intent_is_one_durable_denied_record(service: AuditService, rows: Any) -> None:
    refusal = denied(code="token_expired", status=401)
    await service.completion(refusal)
    await service.settle(5)
    assert [row["phase"] for row in await rows("request_id = :id", id=refusal.request_id)] == ["denied"]


async def test_a_disconnect_keeps_the_tokens_that_were_generated(service: AuditService, rows: Any) -> None:
    exchange = admitted()
    await service.intent(exchange)
    await service.completion(finished(exchange, Outcome.CLIENT_DISCONNECT, status=499))
    await service.settle(5)
    (last,) = await rows("request_id = :id AND phase = 'completion'", id=exchange.request_id)
    assert (last["outcome"], last["tokens_out"]) == ("client_disconnect", 12)


async def test_admin_changes_carry_target_and_etags(service: AuditService, rows: Any) -> None:
    await service.admin(change())
    await service.settle(5)
    (row,) = await rows("phase = 'admin'")
    assert (row["target"], row["personal"]["target"]) == ("policies/*", "policies/default")
    assert b'"after_etag":"v4"' in row["rec"]
    assert row["personal"]["diff"] == {"rate": "0.5", "added": ["r-10"]}
    assert row["personal"]["reason"] == "trimestre nuevo"


async def test_the_hashed_record_holds_no_personal_value_in_the_clear(service: AuditService, rows: Any) -> None:
    exchange = admitted()
    await service.intent(exchange)
    await service.settle(5)
    (row,) = await rows("request_id = :id", id=exchange.request_id)
    for value in (b"u-1042", "Ana Muñoz".encode(), b"10.0.0.7", b"openai-python"):
        assert value not in row["rec"]
    assert row["personal"]["display"] == "Ana Muñoz"


async def test_sequence_numbers_have_no_gap(service: AuditService, rows: Any) -> None:
    for _ in range(20):
        exchange = admitted()
        await service.intent(exchange)
        await service.completion(finished(exchange))
    await service.settle(5)
    assert [row["node_seq"] for row in await rows("true")] == list(range(1, 42))


async def test_nul_and_lone_surrogates_survive(service: AuditService, rows: Any) -> None:
    strange = replace(ANA, subject="u\x00\ud800", display="n\x00")
    exchange = admitted(strange, model="modelo\x00\udfff")
    await service.intent(exchange)
    await service.completion(finished(exchange))
    await service.settle(5)
    found = await rows("request_id = :id", id=exchange.request_id)
    assert [row["phase"] for row in found] == ["intent", "completion"]
    assert found[0]["model_requested"] == "modelo\ufffd\ufffd"
    assert found[0]["subject"] == "u\ufffd\ufffd"
    assert b'"sanitized":true' in found[0]["rec"]


async def test_closing_ships_everything_and_leaves_no_boot_behind(start: Any, rows: Any, spool_dir: Any) -> None:
    service = await start(mode="standard")
    exchange = admitted()
    await service.intent(exchange)
    await service.completion(finished(exchange))
    await service.close()
    assert len(await rows()) == 2
    assert list(spool_dir.glob("*/*/*.log")) == []


@pytest.mark.parametrize("statement", ["UPDATE audit_event SET decision = 'allow'", "DELETE FROM audit_event"])
async def test_the_trail_is_append_only(service: AuditService, engine: Any, statement: str) -> None:
    refusal = denied()
    await service.intent(refusal)
    await service.settle(5)
    with pytest.raises(DBAPIError, match="append-only") as refused:
        async with engine.begin() as connection:
            await connection.exec_driver_sql(statement)
    assert getattr(refused.value.orig, "sqlstate", None) == "42501"


async def test_truncate_is_refused_on_the_table_and_on_a_partition(service: AuditService, engine: Any) -> None:
    async with engine.connect() as connection:
        partition = (
            await connection.exec_driver_sql(
                "SELECT min(inhrelid::regclass::text) FROM pg_inherits WHERE inhparent = 'audit_event'::regclass"
            )
        ).scalar_one()
    for table in ("audit_event", partition):
        with pytest.raises(DBAPIError, match="append-only"):
            async with engine.begin() as connection:
                await connection.exec_driver_sql(f"TRUNCATE {table}")


async def test_erasure_may_empty_personal_columns_and_nothing_else(service: AuditService, engine: Any) -> None:
    await service.intent(admitted())
    await service.settle(5)
    async with engine.begin() as connection:
        await connection.exec_driver_sql("UPDATE audit_event SET subject = NULL, personal = NULL, personal_salt = NULL")
    with pytest.raises(DBAPIError, match="append-only"):
        async with engine.begin() as connection:
            await connection.exec_driver_sql("UPDATE audit_event SET subject = 'someone else'")


async def test_partitions_reach_three_months_ahead_and_the_default_is_empty(service: AuditService, engine: Any) -> None:
    await service.intent(admitted())
    await service.settle(5)
    async with engine.connect() as connection:
        count = (
            await connection.exec_driver_sql(
                "SELECT count(*) FROM pg_inherits WHERE inhparent = 'audit_event'::regclass"
            )
        ).scalar_one()
        stray = (await connection.exec_driver_sql("SELECT count(*) FROM audit_event_default")).scalar_one()
    assert (count, stray) == (5, 0)


async def test_a_flood_of_bad_tokens_is_counted_by_source_instead_of_filling_the_disk(start: Any, rows: Any) -> None:
    service = await start(unknown_per_minute=3)
    for source in ("203.0.113.9", "203.0.113.9", "203.0.113.9", "203.0.113.9", "203.0.113.9", "198.51.100.1"):
        refusal = refused(Received(context=context(ip=source)), "invalid_token", 401)
        await service.intent(refusal)
        await service.completion(refusal)
    await service.close()
    assert len(await rows("phase = 'intent'")) == len(await rows("phase = 'completion'")) == 4
    (bulk,) = await rows("phase = 'aggregated'")
    assert (bulk["deny_code"], bulk["personal"]) == ("invalid_token", {"source_ip": "203.0.113.9"})
    assert b'"aggregate":{"count":2,' in bulk["rec"]


async def test_a_flood_at_the_doors_of_the_admin_api_is_counted_too(start: Any, rows: Any) -> None:
    service = await start(unknown_per_minute=2)
    for _ in range(5):
        await service.admin(
            AdminEvent(
                context=context(ip="203.0.113.9"),
                principal=ANONYMOUS,
                kind="access",
                action="policy.read",
                target="/admin/v1/policies/current",
                allowed=False,
                status=401,
                error_code="invalid_token",
            )
        )
    await service.close()
    assert len(await rows("phase = 'access'")) == 2
    (bulk,) = await rows("phase = 'aggregated'")
    assert b'"aggregate":{"count":3,' in bulk["rec"]


async def test_waiters_of_one_moment_share_one_sync(start: Any) -> None:
    disk = FaultyDisk()
    service = await start(mode="strict", open_file=disk.open)
    before = disk.syncs
    await asyncio.gather(*(service.intent(admitted()) for _ in range(200)))
    assert disk.syncs - before <= 100


async def test_a_cancelled_intent_is_still_joined_by_its_completion(service: AuditService, rows: Any) -> None:
    exchange = admitted()
    waiting = asyncio.create_task(service.intent(exchange))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await service.completion(finished(exchange, Outcome.CANCELLED))
    await service.settle(5)
    found = await rows("request_id = :id", id=exchange.request_id)
    assert [(row["phase"], row["outcome"]) for row in found] == [("intent", None), ("completion", "cancelled")]
