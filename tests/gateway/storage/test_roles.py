"""The gateway runs as a role that owns no table: it appends and reads, and changes or removes nothing of the trail."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import httpx2
import pytest
from sqlalchemy.engine import make_url

from gateway.storage.base import metadata
from gateway.storage.grants import grant_statements
from gateway.storage.migrate import head, upgrade
from tests.fakes.stage import (  # noqa: F401
    Stage,
    _connect,
    _plain_upstream,
    _run_sql,
    apart,
    issuer,
    stage,
    stage_overrides,
    upstream_thread,
)

ROLE = "esclusa_app"


@pytest.fixture(scope="module")
def owner_url(postgres_url: str, migrated_template: str) -> Iterator[str]:
    apart(_run_sql(postgres_url, f"CREATE DATABASE with_roles TEMPLATE {migrated_template}"))
    url = make_url(postgres_url).set(database="with_roles").render_as_string(hide_password=False)
    apart(_run_sql(url, f"CREATE ROLE {ROLE} LOGIN PASSWORD 'app' NOSUPERUSER NOCREATEDB NOCREATEROLE"))
    for statement in grant_statements(ROLE):
        apart(_run_sql(url, statement))
    yield url
    apart(_run_sql(postgres_url, "DROP DATABASE with_roles WITH (FORCE)"))
    apart(_run_sql(postgres_url, f"DROP ROLE {ROLE}"))


@pytest.fixture(scope="module")
def stage_database_url(owner_url: str) -> str:
    """What the gateway of this module is given."""
    return make_url(owner_url).set(username=ROLE, password="app").render_as_string(hide_password=False)


async def refused(url: str, statement: str) -> str:
    connection = await asyncpg.connect(make_url(url).set(drivername="postgresql").render_as_string(hide_password=False))
    try:
        await connection.execute(statement)
    except asyncpg.PostgresError as error:
        return error.sqlstate
    finally:
        await connection.close()
    return ""


def test_a_gateway_serves_records_and_is_governed_without_owning_a_table(stage: Stage) -> None:  # noqa: F811
    body = {"model": "mini", "messages": [{"role": "user", "content": "hola"}]}
    answer = httpx2.post(f"{stage.url}/v1/chat/completions", json=body, headers=stage.headers(), timeout=30)
    assert answer.status_code == 200, answer.text
    assert [row["phase"] for row in stage.records(answer.headers["x-request-id"])] == ["intent", "completion"]
    stage.revoke("u-gone")
    headers = stage.headers("policy-admin", "auditor", "security", sub="u-boss")
    current = httpx2.get(f"{stage.url}/admin/v1/policies/current", headers=headers)
    assert current.status_code == 200, current.text
    restored = httpx2.post(
        f"{stage.url}/admin/v1/policies/versions/1:restore",
        headers={**headers, "if-match": current.headers["etag"], "x-change-reason": "again"},
    )
    assert restored.status_code in (200, 403), restored.text
    events = httpx2.get(f"{stage.url}/admin/v1/audit/events", headers=headers)
    assert events.status_code == 200, events.text
    assert stage.gateway.services.audit.status()["housekeeping_fails"] is False  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_event SET subject = NULL, personal = NULL, personal_salt = NULL",
        "DELETE FROM audit_event",
        "TRUNCATE audit_event",
        "ALTER TABLE audit_event DISABLE TRIGGER USER",
        "DROP TABLE audit_event",
        "DELETE FROM audit_quarantine",
        "SET session_replication_role = replica",
        "SELECT audit_drop_expired('audit_quarantine', now() - interval '400 days')",
        "INSERT INTO audit_event_default SELECT * FROM audit_event",
    ],
)
def test_the_role_of_the_gateway_can_change_nothing_that_is_written(
    stage: Stage,  # noqa: F811
    stage_database_url: str,
    statement: str,
) -> None:
    assert apart(refused(stage_database_url, statement)) == "42501"


def test_the_role_makes_the_partitions_of_months_to_come(stage_database_url: str, owner_url: str) -> None:
    later = datetime.now(UTC) + timedelta(days=200)

    async def work() -> tuple[Any, Any]:
        connection = await _connect(stage_database_url)
        made = await connection.fetchval("SELECT audit_ensure_partitions(1, $1)", later)
        owner = await connection.fetchval(
            "SELECT tableowner FROM pg_tables WHERE tablename = $1", f"audit_event_{later:%Y_%m}"
        )
        await connection.close()
        return made, owner

    made, owner = apart(work())
    assert (made, owner) == (2, make_url(owner_url).username)


def test_a_start_with_the_schema_up_to_date_needs_no_owner(stage_database_url: str) -> None:
    apart(upgrade(stage_database_url))
    assert head()


def test_every_table_has_its_grants() -> None:
    granted = set(re.findall(r"[a-z_]+", " ".join(grant_statements(ROLE))))
    assert set(metadata.tables) <= granted


def test_the_name_of_a_role_is_quoted() -> None:
    assert 'TO "a""; DROP TABLE x"' in next(iter(grant_statements('a"; DROP TABLE x')))
