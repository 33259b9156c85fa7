"""Migrations on a real Postgres: up, down, up again, twice at once."""

from __future__ import annotations

import asyncio
import importlib
import importlib.resources
import shutil
from pathlib import Path

import pytest
from sqlalchemy import text

from gateway.errors import ConfigError
from gateway.storage import migrate
from gateway.storage.base import metadata
from gateway.storage.dsn import parse_database_url
from gateway.storage.postgres import connect_raw, make_engine


async def tables(url: str) -> set[str]:
    connection = await connect_raw(url)
    rows = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    await connection.close()
    return {row["tablename"] for row in rows}


async def test_a_new_database_is_brought_to_the_head(empty_database_url: str) -> None:
    assert await migrate.current(empty_database_url) is None
    await migrate.upgrade(empty_database_url)
    assert await migrate.current(empty_database_url) == migrate.head()
    assert "audit_event" in await tables(empty_database_url)


async def test_every_revision_can_be_undone_and_done_again(empty_database_url: str) -> None:
    await migrate.upgrade(empty_database_url)
    before = await tables(empty_database_url)
    await migrate.downgrade(empty_database_url, "base")
    assert await tables(empty_database_url) == {"alembic_version"}
    await migrate.upgrade(empty_database_url)
    assert await tables(empty_database_url) == before


async def test_the_tables_of_the_code_are_those_of_the_revisions(empty_database_url: str) -> None:
    """Types and constraints beyond names are the domains' own tests; a table nobody migrated would be missed there."""
    await migrate.upgrade(empty_database_url)
    for module in ("audit.tables", "access.history.tables", "identity.tables", "storage.idempotency"):
        importlib.import_module(f"gateway.{module}")
    connection = await connect_raw(empty_database_url)
    rows = await connection.fetch("SELECT table_name, column_name FROM information_schema.columns")
    await connection.close()
    there = {(row["table_name"], row["column_name"]) for row in rows}
    assert len(metadata.tables) > 8
    assert not {(table.name, column.name) for table in metadata.tables.values() for column in table.columns} - there


async def test_replicas_that_start_together_migrate_once(empty_database_url: str) -> None:
    await asyncio.gather(*(migrate.upgrade(empty_database_url) for _ in range(4)))
    assert await migrate.pending(empty_database_url) == ()


async def test_pending_lists_what_is_missing_oldest_first(empty_database_url: str) -> None:
    assert (await migrate.pending(empty_database_url))[0] == "0001_audit"


async def test_the_migrated_fixture_is_empty_and_current(database_url: str) -> None:
    assert await migrate.pending(database_url) == ()
    engine = make_engine(database_url)
    async with engine.connect() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM audit_event"))).scalar_one() == 0
    await engine.dispose()


@pytest.mark.parametrize("spelling", ["postgres://u:p@h/d", "postgresql://u:p@h/d", "postgresql+asyncpg://u:p@h/d"])
def test_the_driver_is_always_written_out(spelling: str) -> None:
    assert parse_database_url(spelling).drivername == "postgresql+asyncpg"


def test_another_database_is_refused_with_a_hint_and_without_the_password() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_database_url("mysql+pymysql://root:hunter2@h/d")
    assert "postgresql+asyncpg://" in str(refused.value)
    assert "hunter2" not in str(refused.value)


async def test_an_installed_package_migrates_from_its_own_copy(
    empty_database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "gateway"
    shutil.copytree(migrate.migrations_path(), package / "_assets" / "migrations")
    monkeypatch.setattr(importlib.resources, "files", lambda _name: package)
    assert migrate.migrations_path() == package / "_assets" / "migrations"
    await migrate.upgrade(empty_database_url)
    assert await migrate.pending(empty_database_url) == ()


def test_a_package_without_migrations_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.resources, "files", lambda _name: tmp_path / "gateway")
    with pytest.raises(ConfigError, match="reinstall"):
        migrate.migrations_path()
