"""Alembic without an ini file: up, down, where am I. Finds the revisions beside the code or inside the wheel.

All of an upgrade is one transaction under an advisory lock, so replicas that start together migrate once.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import TypeVar

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from gateway.errors import ConfigError
from gateway.storage.postgres import make_single_engine

T = TypeVar("T")

MIGRATION_LOCK = 0x45534C5553414D49
"""Key of the advisory lock: the letters ESLUSAMI."""


def migrations_path() -> Path:
    """The folder with `env.py` and `versions/`: of the checkout, else of the installed wheel."""
    package = Path(str(resources.files("gateway")))
    for candidate in (package.parent / "migrations", package / "_assets" / "migrations"):
        if (candidate / "env.py").is_file():
            return candidate
    raise ConfigError("the database migrations are missing from this installation", hint="reinstall esclusa")


def migration_config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations_path()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    if connection is not None:
        config.attributes["connection"] = connection
    return config


def head() -> str:
    """The newest revision in this build."""
    newest = ScriptDirectory.from_config(migration_config()).get_current_head()
    if newest is None:
        raise ConfigError("this build has no database migrations", hint="reinstall esclusa")
    return newest


async def upgrade(database_url: str, revision: str = "head") -> None:
    """Bring the schema to `revision`. Safe to call at every start, from every replica."""
    await _locked(database_url, lambda connection: command.upgrade(migration_config(connection), revision))


async def downgrade(database_url: str, revision: str) -> None:
    """Undo revisions down to `revision` (`base`, `-1` or an id). Destroys the data of what it drops."""
    await _locked(database_url, lambda connection: command.downgrade(migration_config(connection), revision))


async def current(database_url: str) -> str | None:
    """The revision the database is at; None before the first migration."""
    return await _run(database_url, _current)


async def pending(database_url: str) -> tuple[str, ...]:
    """Revisions this build has and the database has not, oldest first. Empty: the schema is up to date."""
    at = await current(database_url)
    script = ScriptDirectory.from_config(migration_config())
    missing = [revision.revision for revision in script.iterate_revisions("head", at or "base")]
    return tuple(revision for revision in reversed(missing) if revision != at)


def _current(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


async def _locked(database_url: str, work: Callable[[Connection], None]) -> None:
    def with_lock(connection: Connection) -> None:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
        work(connection)

    await _run(database_url, with_lock)


async def _run(database_url: str, work: Callable[[Connection], T]) -> T:
    engine = make_single_engine(database_url)
    try:
        async with engine.begin() as connection:
            return await connection.run_sync(work)
    finally:
        await engine.dispose()
