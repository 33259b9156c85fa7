"""`esclusa audit erase` and `retain`: what may be taken out of the trail, and on record. `gateway.audit` does it.

Run them with a database role that may: `esclusa db grants` prints which rights those are.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from gateway.audit.service import AuditService

T = TypeVar("T")

CONFIG = typer.Option(None, "--config", help="Settings file (YAML).")
JSON = typer.Option(False, "--json", help="JSON on stdout.")


def erase(
    tenant: str = typer.Option(..., "--tenant", help="The tenant of the person."),
    issuer: str = typer.Option(..., "--issuer", help="The issuer of the person's tokens."),
    subject: str = typer.Option(..., "--subject", help="The subject of the person's tokens."),
    also: list[str] = typer.Option([], "--also", help="Another name of the person in others' records, as an e-mail."),
    reason: str = typer.Option(..., "--reason", help="Why; kept in the trail, so do not name the person."),
    config: Path | None = CONFIG,
    as_json: bool = JSON,
) -> None:
    """Take a person out of the trail: their own values, mentions by administrators, recorded prompts and answers. Their
    files and batches go too.

    The hash chains stay whole. Records that still wait in a spool are not reached: run it again later.

    Example: esclusa audit erase --tenant acme --issuer https://idp.acme.example --subject u-1042 --reason "request 17"
    """

    async def work(engine: AsyncEngine, audit: AuditService) -> dict[str, int]:
        from dataclasses import asdict

        from gateway.audit.erasure import erase as erase_person
        from gateway.cli.on_record import cli_event

        await audit.settle(10)
        names = {"tenant": tenant, "issuer": issuer, "subject": subject}
        erased = asdict(await erase_person(engine, **names, also=tuple(also), tell=audit.tell_erased))
        await audit.admin(cli_event("esclusa audit erase", "audit.erase", tenant=tenant, reason=reason, diff=erased))
        return erased

    erased = _with_audit(config, work)
    print(json.dumps(erased) if as_json else ", ".join(f"{name}: {count}" for name, count in erased.items()))


def retain(
    dry_run: bool = typer.Option(False, "--dry-run", help="Only say what would be removed."),
    config: Path | None = CONFIG,
    as_json: bool = JSON,
) -> None:
    """Remove the months of the trail that are older than `audit.retention_days`, each after a record that tells of it.

    Gateways whose database role may do this do it by themselves, once an hour.

    Example: esclusa audit retain --dry-run
    """

    async def work(_engine: AsyncEngine, audit: AuditService) -> list[tuple[str, int]]:
        found = await (audit.find_expired() if dry_run else audit.retain())
        return [(one.part, one.rows) for one in found]

    found = _with_audit(config, work)
    if as_json:
        print(json.dumps({"dry_run": dry_run, "removed": [{"part": part, "rows": rows} for part, rows in found]}))
        return
    for part, rows in found:
        print(f"{'would remove' if dry_run else 'removed'} {part}: {rows} rows")
    if not found:
        print("nothing to remove, or this role may not: see `esclusa db grants --with-retention`")


def _with_audit(config: Path | None, work: Callable[[AsyncEngine, AuditService], Awaitable[T]]) -> T:
    from sqlalchemy.exc import SQLAlchemyError

    from gateway.errors import ConfigError
    from gateway.local.datastores import open_database
    from gateway.settings import load_settings
    from gateway.wiring.commands import open_upkeep

    settings = load_settings(config)

    async def run() -> T:
        async with open_database(settings) as url, open_upkeep(url, settings) as (engine, audit):
            return await work(engine, audit)

    try:
        return asyncio.run(run())
    except (OSError, SQLAlchemyError) as error:
        raise ConfigError(
            f"the database refused or did not answer ({type(error).__name__})",
            hint="check DATABASE_URL and the rights of its role: `esclusa db grants`",
        ) from error
