"""`esclusa audit` and `esclusa db` on a real database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.audit.service import AuditService
from gateway.cli import audit, db
from gateway.errors import ConfigError
from gateway.flow.context import SystemClock, SystemIds
from gateway.settings import AuditSettings
from gateway.storage.postgres import connect_raw, make_engine
from tests.fakes.exchanges import ANA, admitted, denied, finished

Run = Callable[..., Result]


@pytest.fixture
def spool(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("ESCLUSA_AUDIT__SPOOL_DIR", str(tmp_path / "spool"))
    return tmp_path / "spool"


@pytest.fixture
def run(spool: Path) -> Run:
    def esclusa(*words: str) -> Result:
        app = {"audit": audit.app, "db": db.app}[words[0]]
        return CliRunner().invoke(app, list(words[1:]))

    return esclusa


def write(url: str, spool: Path) -> str:
    """An answered request and a refused one; the id of the first."""

    async def work() -> str:
        engine = make_engine(url, connect_timeout_s=1)
        service = AuditService(
            engine,
            settings=AuditSettings(),
            spool_dir=spool,
            clock=SystemClock(),
            ids=SystemIds(),
            node_id="node-a",
            gateway_version="0.1.0",
        )
        await service.start()
        exchange, refusal = admitted(), denied(replace(ANA, subject="luis\x1b[31m"))
        for one, last in ((exchange, finished(exchange)), (refusal, refusal)):
            await service.intent(one)
            await service.completion(last)
        await service.close()
        await engine.dispose()
        return str(exchange.request_id)

    return asyncio.run(work())


def execute(url: str, statement: str) -> None:
    async def work() -> None:
        connection = await connect_raw(url)
        await connection.execute(f"SET session_replication_role = replica; {statement}")
        await connection.close()

    asyncio.run(work())


def test_tail_prints_the_latest_events_oldest_first(run: Run, spool: Path, database_url: str) -> None:
    write(database_url, spool)
    lines = run("audit", "tail").stdout.splitlines()
    assert len(lines) == 4
    assert "acme/u-1042" in lines[1]
    assert "26+12 tokens" in lines[1]
    assert "model_not_permitted" in lines[2] or "denied" in lines[3]


def test_tail_as_json_is_one_event_a_line(run: Run, spool: Path, database_url: str) -> None:
    write(database_url, spool)
    events = [json.loads(line) for line in run("audit", "tail", "--json", "-n", "2").stdout.splitlines()]
    assert [event["decision"] for event in events] == ["deny", "deny"]


def test_a_subject_cannot_send_escape_sequences_to_the_terminal(run: Run, spool: Path, database_url: str) -> None:
    write(database_url, spool)
    assert "\x1b" not in run("audit", "tail").stdout


def test_tail_filters(run: Run, spool: Path, database_url: str) -> None:
    write(database_url, spool)
    assert len(run("audit", "tail", "--decision", "allow").stdout.splitlines()) == 2
    assert len(run("audit", "tail", "--model", "auto").stdout.splitlines()) == 2
    assert len(run("audit", "tail", "--subject", "nobody").stdout.splitlines()) == 0


def test_events_that_only_the_spool_has_are_shown_too(run: Run, spool: Path) -> None:
    request_id = write("postgresql://nobody:x@127.0.0.1:1/none", spool)
    events = [json.loads(line) for line in run("audit", "tail", "--json").stdout.splitlines()]
    assert [event["spooled"] for event in events] == [True] * 4
    assert len(run("audit", "show", request_id, "--json").stdout.splitlines()) == 2


def test_show_prints_the_records_of_a_request_and_of_an_event(run: Run, spool: Path, database_url: str) -> None:
    request_id = write(database_url, spool)
    events = [json.loads(line) for line in run("audit", "show", request_id, "--json").stdout.splitlines()]
    assert [event["phase"] for event in events] == ["intent", "completion"]
    assert events[1]["record"]["usage"]["tokens_out"] == 12
    (one,) = run("audit", "show", events[0]["event_id"], "--json").stdout.splitlines()
    assert json.loads(one)["event_id"] == events[0]["event_id"]


def test_show_of_an_unknown_id_exits_1(run: Run) -> None:
    assert run("audit", "show", "01a22d3c-6ad0-7a28-9908-40d788dc40a9").exit_code == 1


def test_verify_of_a_whole_trail_exits_0(run: Run, spool: Path, database_url: str) -> None:
    write(database_url, spool)
    report = json.loads(run("audit", "verify", "--json").stdout)
    assert (report["ok"], report["rows"]) == (True, 5)


def test_verify_of_a_changed_trail_exits_3_and_names_the_row(run: Run, spool: Path, database_url: str) -> None:
    write(database_url, spool)
    execute(database_url, "UPDATE audit_event SET decision = 'allow' WHERE decision = 'deny'")
    answer = run("audit", "verify")
    assert answer.exit_code == 3
    assert "column_mismatch" in answer.stdout
    assert "#4" in answer.stdout


def test_verify_finds_against_heads_kept_outside_what_was_done_to_the_newest_run(
    run: Run, spool: Path, database_url: str, tmp_path: Path
) -> None:
    write(database_url, spool)
    kept = tmp_path / "heads.json"
    kept.write_text(run("audit", "verify", "--json").stdout)
    assert json.loads(kept.read_text())["chains"][0]["head"] in run("audit", "verify").stdout
    assert run("audit", "verify", "--against", str(kept)).exit_code == 0
    execute(database_url, "DELETE FROM audit_event WHERE node_seq = 5")
    for note in (spool / ".ended").glob("*.json"):
        note.unlink()  # as on a machine that does not have the spool
    assert run("audit", "verify").exit_code == 0
    found = run("audit", "verify", "--against", str(kept))
    assert (found.exit_code, "cut_tail" in found.stdout) == (3, True)
    assert run("audit", "verify", "--against", str(kept), "--from", "2026-01-01").exit_code == 2


def test_verify_misses_a_run_that_was_deleted(run: Run, spool: Path, database_url: str) -> None:
    write(database_url, spool)
    first = json.loads(run("audit", "verify", "--json").stdout)["chains"][0]["boot_id"]
    write(database_url, spool)
    assert run("audit", "verify").exit_code == 0
    execute(database_url, f"DELETE FROM audit_event WHERE boot_id = '{first}'")
    found = run("audit", "verify")
    assert (found.exit_code, f"missing_run at {first}" in found.stdout) == (3, True)


@pytest.mark.parametrize(("which", "kind"), [("true", "missing_run"), ("node_seq > 3", "cut_tail")])
def test_verify_holds_the_trail_against_the_end_of_a_run_that_stopped(
    run: Run, spool: Path, database_url: str, which: str, kind: str
) -> None:
    write(database_url, spool)
    execute(database_url, f"DELETE FROM audit_event WHERE {which}")
    found = run("audit", "verify")
    assert (found.exit_code, kind in found.stdout) == (3, True)


def test_verify_says_when_it_cannot_read_a_spool(run: Run, spool: Path, database_url: str, tmp_path: Path) -> None:
    write(database_url, spool)
    assert json.loads(run("audit", "verify", "--json").stdout)["spool_read"] is True
    spool.rename(tmp_path / "elsewhere")
    without = run("audit", "verify", "--json")
    assert "not held against a spool" in without.stderr
    assert (without.exit_code, json.loads(without.stdout)["spool_read"]) == (0, False)


def test_verify_reads_personal_values_with_the_key_of_the_spool(run: Run, spool: Path, database_url: str) -> None:
    write(database_url, spool)
    execute(
        database_url,
        "UPDATE audit_event SET personal = personal || '{\"subject\": \"otra\"}', subject = 'otra' "
        "WHERE subject = 'u-1042'",
    )
    assert run("audit", "verify").exit_code == 3
    (spool / "commitment.key").unlink()
    without = run("audit", "verify")
    assert without.exit_code == 0
    assert "not compared" in without.stderr


def test_a_database_that_is_away_is_an_error_with_a_hint(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://nobody:x@127.0.0.1:1/none")
    for words in (("audit", "tail"), ("audit", "verify"), ("db", "current")):
        failed = run(*words)
        assert isinstance(failed.exception, ConfigError)
        assert "hint" in str(failed.exception)


def test_db_says_where_it_is_and_that_nothing_is_pending(run: Run) -> None:
    state = json.loads(run("db", "current", "--json").stdout)
    assert state["current"] == state["head"]
    assert run("db", "check").exit_code == 0


def test_db_downgrade_needs_a_yes(run: Run) -> None:
    assert run("db", "downgrade", "base").exit_code == 2
    assert run("db", "downgrade", "base", "--yes").stdout.strip() == "empty"
    assert run("db", "check").exit_code == 1
    assert "-> 0" in run("db", "upgrade").stdout


def test_erase_takes_a_person_out_and_is_on_record(run: Run, spool: Path, database_url: str) -> None:
    write(database_url, spool)
    issuer = ANA.issuer
    who = ("--tenant", "acme", "--issuer", issuer, "--subject", "u-1042", "--reason", "request 17", "--json")
    erased = json.loads(run("audit", "erase", *who).stdout)
    assert erased == {
        "own": 2,
        "mentions": 0,
        "contents": 0,
        "quarantined": 0,
        "responses": 0,
        "files": 0,
        "batches": 0,
    }
    assert "u-1042" not in run("audit", "tail").stdout
    (event,) = [
        json.loads(line)
        for line in run("audit", "tail", "--json").stdout.splitlines()
        if json.loads(line)["phase"] == "admin"
    ]
    assert (event["action"], event["tenant"]) == ("audit.erase", "acme")
    assert run("audit", "verify").exit_code == 0


def test_retain_says_what_it_would_remove(run: Run, spool: Path, database_url: str) -> None:
    write(database_url, spool)
    assert "nothing to remove" in run("audit", "retain", "--dry-run").stdout
    assert json.loads(run("audit", "retain", "--json").stdout) == {"dry_run": False, "removed": []}


def test_grants_are_printed_for_a_role(run: Run) -> None:
    plain = run("db", "grants", "--role", "app").stdout
    assert 'GRANT SELECT, INSERT ON audit_event, audit_quarantine TO "app";' in plain
    assert "UPDATE (subject" not in plain
    assert "audit_drop_expired" in run("db", "grants", "--role", "app", "--with-retention").stdout
