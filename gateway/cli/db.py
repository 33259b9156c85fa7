"""`esclusa db`: bring the schema up to date, ask where it is, go back. `gateway.storage.migrate` does the work."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import typer

T = TypeVar("T")

app = typer.Typer(help="The database schema: upgrade, current, check, downgrade, grants.", no_args_is_help=True)

CONFIG = typer.Option(None, "--config", help="Settings file (YAML).")
JSON = typer.Option(False, "--json", help="JSON on stdout.")


@app.command("upgrade")
def upgrade(
    revision: str = typer.Argument("head", help="A revision id; `head` is the newest."),
    config: Path | None = CONFIG,
    as_json: bool = JSON,
) -> None:
    """Bring the schema to a revision.

    Example: esclusa db upgrade
    """
    from gateway.storage import migrate

    async def work(url: str) -> tuple[str | None, str | None]:
        before = await migrate.current(url)
        await migrate.upgrade(url, revision)
        return before, await migrate.current(url)

    before, after = _with_database(config, work)
    _say(as_json, {"from": before, "to": after}, f"{before or 'empty'} -> {after}")


@app.command("current")
def current(config: Path | None = CONFIG, as_json: bool = JSON) -> None:
    """Print the revision the database is at.

    Example: esclusa db current --json
    """
    from gateway.storage import migrate

    at = _with_database(config, migrate.current)
    _say(as_json, {"current": at, "head": migrate.head()}, at or "empty")


@app.command("check")
def check(config: Path | None = CONFIG, as_json: bool = JSON) -> None:
    """Exit 1 when the schema is behind this build.

    Example: esclusa db check || esclusa db upgrade
    """
    from gateway.storage import migrate

    missing = _with_database(config, migrate.pending)
    _say(as_json, {"pending": list(missing)}, "up to date" if not missing else "pending: " + ", ".join(missing))
    if missing:
        raise typer.Exit(1)


@app.command("downgrade")
def downgrade(
    revision: str = typer.Argument(..., help="A revision id, `-1` or `base`."),
    yes: bool = typer.Option(False, "--yes", help="Yes, destroy the data of what is dropped."),
    config: Path | None = CONFIG,
    as_json: bool = JSON,
) -> None:
    """Go back to a revision. Destroys the data of the tables that it drops.

    Example: esclusa db downgrade 0001_audit --yes
    """
    from gateway.storage import migrate

    if not yes:
        print("this destroys data; repeat with --yes if you mean it", file=sys.stderr)
        raise typer.Exit(2)

    async def work(url: str) -> str | None:
        await migrate.downgrade(url, revision)
        return await migrate.current(url)

    at = _with_database(config, work)
    _say(as_json, {"current": at}, at or "empty")


@app.command("grants")
def grants(
    role: str = typer.Option(..., "--role", help="The database role of the running gateway."),
    with_erasure: bool = typer.Option(False, "--with-erasure", help="Also what `esclusa audit erase` needs."),
    with_retention: bool = typer.Option(False, "--with-retention", help="Also what removing old records needs."),
) -> None:
    """Print the SQL that lets a role run the gateway without owning the tables. Needs no database.

    Example: esclusa db grants --role esclusa_app | psql "$OWNER_DATABASE_URL"
    """
    from gateway.storage.grants import grant_statements

    for statement in grant_statements(role, erasure=with_erasure, retention=with_retention):
        print(f"{statement};")


def _with_database(config: Path | None, work: Callable[[str], Awaitable[T]]) -> T:
    from sqlalchemy.exc import SQLAlchemyError

    from gateway.errors import ConfigError
    from gateway.local.datastores import open_database
    from gateway.settings import load_settings

    async def run() -> T:
        async with open_database(load_settings(config)) as url:
            return await work(url)

    try:
        return asyncio.run(run())
    except (OSError, SQLAlchemyError) as error:
        raise ConfigError(
            f"the database does not answer ({type(error).__name__})", hint="check DATABASE_URL; see `esclusa doctor`"
        ) from error


def _say(as_json: bool, document: dict[str, Any], line: str) -> None:
    print(json.dumps(document) if as_json else line)
