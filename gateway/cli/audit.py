"""`esclusa audit`: read and verify the trail on the machine itself. Parses and prints; `gateway.audit` reads.

Shows what is still in this machine's spool as well. Access is that of the database account, not of a policy role.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import typer

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from gateway.audit.quarantine import Kept
    from gateway.audit.reader import AuditReader
    from gateway.audit.shipped import Shipped
    from gateway.audit.verify import ChainReport
    from gateway.settings import Settings

T = TypeVar("T")

app = typer.Typer(help="The audit trail: tail, show, verify.", no_args_is_help=True)

CONFIG = typer.Option(None, "--config", help="Settings file (YAML).")
JSON = typer.Option(False, "--json", help="JSON on stdout, one event a line.")
BROKEN = 3
LOST = 4


@dataclass(frozen=True, slots=True)
class Verified:
    """The findings of `verify`: of each chain, in the spool, in the quarantine's table; whether it read the spool."""

    reports: list[ChainReport]
    kept: Kept
    refused: int
    spool: bool


@app.command("tail")
def tail(
    count: int = typer.Option(20, "--count", "-n", min=1, max=500, help="How many of the latest events."),
    follow: bool = typer.Option(False, "--follow", "-f", help="Go on with new events until Ctrl-C."),
    subject: str | None = typer.Option(None, "--subject", help="Only this subject."),
    model: str | None = typer.Option(None, "--model", help="Only this requested or served model."),
    decision: str | None = typer.Option(None, "--decision", help="allow, deny or error."),
    since_h: float = typer.Option(24.0, "--since", min=0.01, max=24 * 31, help="Hours to look back."),
    config: Path | None = CONFIG,
    as_json: bool = JSON,
) -> None:
    """Print the latest events, oldest first.

    Example: esclusa audit tail -n 50 --decision deny
    """
    from gateway.audit.reader import EventFilter

    def wanted() -> EventFilter:
        now = datetime.now(UTC)
        start, end = now - timedelta(hours=since_h), now + timedelta(minutes=5)
        return EventFilter(start=start, end=end, subject=subject, model=model, decision=decision)

    def matches(row: Mapping[str, Any]) -> bool:
        asked = (("subject", subject), ("decision", decision))
        named = model is None or model in (row["model_requested"], row["model_served"])
        shown = row["phase"] != "system"
        return shown and named and all(value is None or row[name] == value for name, value in asked)

    async def work(reader: AuditReader, _engine: AsyncEngine, spool: Path) -> None:
        seen: set[UUID] = set()
        while True:
            page = await reader.events(wanted(), limit=count if not seen else 500)
            rows = {row["event_id"]: row for row in _spooled(spool) if matches(row)}
            rows |= {row["event_id"]: row for row in page.events}
            latest = sorted(rows.values(), key=lambda row: (row["ts"], row["event_id"]))
            for row in latest if seen else latest[-count:]:
                if row["event_id"] not in seen:
                    print(_json(row) if as_json else _line(row), flush=True)
            seen.update(rows)
            if not follow:
                return
            await asyncio.sleep(1.0)

    _with_trail(config, work)


@app.command("show")
def show(
    event_or_request: UUID = typer.Argument(..., help="An event id or a request id (`x-request-id`)."),
    config: Path | None = CONFIG,
    as_json: bool = JSON,
) -> None:
    """Print one event, or all events of one request, with their records.

    Example: esclusa audit show 01a22d3c-6ad0-7a28-9908-40d788dc40a9
    """

    async def work(reader: AuditReader, _engine: AsyncEngine, spool: Path) -> list[Mapping[str, Any]]:
        waiting = [row for row in _spooled(spool) if event_or_request in (row["event_id"], row["request_id"])]
        found = [*await reader.of_request(event_or_request), *waiting]
        one = None if found else await reader.event(event_or_request)
        unique = {row["event_id"]: row for row in ([one] if one is not None else reversed(found))}
        return sorted(unique.values(), key=lambda row: (row["ts"], row["event_id"]))

    rows = _with_trail(config, work)
    if not rows:
        print("no event and no request has this id", file=sys.stderr)
        raise typer.Exit(1)
    for row in rows:
        print(_json(row) if as_json else json.dumps(json.loads(_json(row)), indent=2, ensure_ascii=False))


@app.command("verify")
def verify(
    start: datetime | None = typer.Option(None, "--from", help="Take chains up at this time (UTC)."),
    end: datetime | None = typer.Option(None, "--to", help="Up to this time (UTC)."),
    against: Path | None = typer.Option(None, "--against", help="What `verify --json` printed earlier."),
    config: Path | None = CONFIG,
    as_json: bool = JSON,
) -> None:
    """Walk the hash chains. Exit 3 at any row that was changed, removed, inserted or renumbered, and at any run of the
    gateway that was deleted, cut or rewritten; 4 when all that does not fit was lost with a damaged spool or refused by
    Postgres, as the trail itself says.

    Prints the head of each chain. Keep them where nobody who writes to the database can change them, and give them to
    --against later: what was done to the newest run after its process had ended is found by that alone.

    Example: esclusa audit verify --json > heads.json; esclusa audit verify --against heads.json
    """
    from gateway.audit.chain_walker import TOLD
    from gateway.audit.heads import parse_kept
    from gateway.audit.quarantine import survey
    from gateway.audit.shipper import count_refused
    from gateway.audit.verify import verify as walk

    async def work(_reader: AuditReader, engine: AsyncEngine, spool: Path) -> Verified:
        key = _commitment_key(config, spool)
        if key is None:
            print("personal values are not compared: the commitment key is not here", file=sys.stderr)
        shipped = _shipped(spool)  # before the database is read: what is committed later is no matter
        if shipped is None:
            print(f"the trail is not held against a spool: {spool} cannot be read here", file=sys.stderr)
        waiting: dict[UUID, int] = {}
        for row in _spooled(spool):
            waiting[row["boot_id"]] = max(row["node_seq"], waiting.get(row["boot_id"], 0))
        heads = (*kept_heads, *(() if shipped is None else shipped.ends))
        upto = {} if shipped is None else shipped.upto
        chains = walk(engine, key=key, start=_utc(start), end=_utc(end), kept=heads, shipped=upto, waiting=waiting)
        return Verified([one async for one in chains], survey(spool), await count_refused(engine), shipped is not None)

    if against is not None and (start is not None or end is not None):
        raise typer.BadParameter("a kept head is held against the whole trail: leave --from and --to out")
    kept_heads = () if against is None else parse_kept(_read(against), source=str(against))
    verified = _with_trail(config, work)
    reports, kept, refused = verified.reports, verified.kept, verified.refused
    problems = [problem for report in reports for problem in report.problems]
    if as_json:
        rows = sum(report.checked for report in reports)
        aside = {"files": kept.files, "damages": kept.damages, "rows": refused}
        print(
            _json(
                {"ok": not problems, "rows": rows, "chains": reports, "quarantine": aside, "spool_read": verified.spool}
            )
        )
    else:
        for report in reports:
            state = "ok" if not report.problems else f"{len(report.problems)} problems"
            print(f"{report.node_id} {report.boot_id} {report.first_seq}-{report.last_seq} {state} {report.head}")
        for problem in problems:
            print(
                f"  {problem.kind} at {problem.boot_id} #{problem.node_seq} {problem.event_id or ''} {problem.detail}"
            )
        for damage in kept.damages:
            print(f"  kept in quarantine/boot-{damage.boot_id}/: {damage}")
        if refused:
            print(f"  {refused} rows in audit_quarantine: refused by Postgres, or moved there")
        print(f"{sum(report.checked for report in reports)} rows in {len(reports)} chains checked", file=sys.stderr)
    if problems:
        raise typer.Exit(LOST if all(problem.kind in TOLD for problem in problems) else BROKEN)


def _with_trail(config: Path | None, work: Callable[[AuditReader, AsyncEngine, Path], Awaitable[T]]) -> T:
    from sqlalchemy.exc import SQLAlchemyError

    from gateway.errors import ConfigError, Unavailable
    from gateway.local.datastores import open_database
    from gateway.local.paths import spool_dir
    from gateway.wiring.commands import open_trail

    settings = _settings(config)

    async def run() -> T:
        async with open_database(settings) as url, open_trail(url) as (reader, engine):
            return await work(reader, engine, spool_dir(settings))

    try:
        return asyncio.run(run())
    except Unavailable as error:
        raise ConfigError(
            f"the audit trail cannot be read ({error.detail})", hint="is the schema migrated? esclusa db check"
        ) from error
    except (OSError, SQLAlchemyError) as error:
        raise ConfigError(
            f"the database does not answer ({type(error).__name__})", hint="check DATABASE_URL; see `esclusa doctor`"
        ) from error


def _settings(config: Path | None) -> Settings:
    from gateway.settings import load_settings

    return load_settings(config)


def _read(path: Path) -> str:
    from gateway.errors import ConfigError

    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "the file cannot be read", file=str(path), hint="give what `verify --json` printed"
        ) from error


def _commitment_key(config: Path | None, spool: Path) -> Any:
    from gateway.audit.canonical import CommitmentKey
    from gateway.audit.spool_dirs import KEY_FILE

    configured = _settings(config).audit.hmac_key
    if configured is not None:
        return CommitmentKey(configured.get_secret_value().encode())
    try:
        return CommitmentKey((spool / KEY_FILE).read_bytes())
    except OSError:
        return None


def _spooled(spool: Path) -> Iterable[dict[str, Any]]:
    from gateway.audit.shipped import unshipped

    return unshipped(spool)


def _shipped(spool: Path) -> Shipped | None:
    from gateway.audit.shipped import read_shipped

    try:
        return read_shipped(spool)
    except OSError:
        return None


def _utc(moment: datetime | None) -> datetime | None:
    return moment if moment is None or moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _json(document: Any) -> str:
    import orjson

    return orjson.dumps(document, option=orjson.OPT_UTC_Z).decode()


def _line(row: Mapping[str, Any]) -> str:
    """One event for a person: when, what, who, which model, how it ended."""
    end = row["outcome"] or row["deny_code"] or ""
    tokens = "" if row["tokens_out"] is None else f"{row['tokens_in']}+{row['tokens_out']} tokens"
    what = row["model_served"] or row["model_requested"] or row["target"] or row["route"]
    fields = (
        row["ts"].astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"),
        f"{row['phase']:10}",
        f"{row['decision']:5}",
        _whose(row),
        what,
        "" if row["http_status"] is None else str(row["http_status"]),
        end,
        tokens,
        str(row["request_id"]),
    )
    return _printable("  ".join(field for field in fields if field))


def _whose(row: Mapping[str, Any]) -> str:
    """Counts and records of the system itself have no subject; of a person's record it can have been erased."""
    if row["subject"] is not None:
        return f"{row['tenant']}/{row['subject']}"
    return f"{row['tenant']}/(erased)" if row["phase"] in ("intent", "completion", "admin") else "-"


def _printable(text: str) -> str:
    """A user agent or a subject must not move the terminal's cursor (T30)."""
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in text)


from gateway.cli import audit_upkeep  # noqa: E402 - its commands belong to the same group

app.command("erase")(audit_upkeep.erase)
app.command("retain")(audit_upkeep.retain)
