"""`esclusa policy` on files, against a gateway on a loopback port, and straight on a database."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from getpass import getuser
from pathlib import Path

import pytest
import uvicorn
from sqlalchemy import text
from typer.testing import CliRunner, Result

from gateway.access.history.repository import PolicyRepository
from gateway.cli.policy import app
from gateway.errors import ConfigError
from gateway.flow.values import Effect
from gateway.storage.postgres import make_engine
from tests.fakes.policy_stage import SEED, policy_stage
from tests.gateway.admin.policies.test_guards import past

TEXT = SEED.read_text(encoding="utf-8")
SMALLER = TEXT.replace("maxOutputTokens: 2048", "maxOutputTokens: 1024")
LARGE = "qwen2.5-coder-0.5b-instruct"

Remote = Callable[..., Awaitable[Result]]


def policy(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def line_of(words: str) -> int:
    """Where they stand first in the shipped policy."""
    return TEXT[: TEXT.index(words)].count("\n") + 1


def rewrite(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "next.yaml"
    path.write_text(SMALLER, encoding="utf-8")
    return path


def test_a_good_policy_is_checked_with_exit_0() -> None:
    result = policy("check", str(SEED))
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{SEED}: ok, 9 rules, sha256 ")


def test_a_wrong_policy_ends_with_exit_2_and_file_line_column(file: Path) -> None:
    rewrite(file, TEXT.replace("effect: allow", "effect: permit", 1))
    result = policy("check", str(file), str(SEED))
    assert result.exit_code == 2
    assert (
        f"{file}:{line_of('effect: allow')}:13: `rules[0].effect`: found `permit`; expected `allow`, `deny`"
        in result.stdout
    )
    assert f"{SEED}: ok" in result.stdout


def test_checks_as_json_name_every_problem_with_its_place(file: Path) -> None:
    rewrite(file, TEXT.replace("roles: [employee]", "roles: [employe]"))
    [report] = json.loads(policy("check", str(file), "--json").stdout)
    assert (report["valid"], report["problems"][0]["line"], report["problems"][0]["hint"]) == (
        False,
        line_of("roles: [employee]"),
        "did you mean `employee`?",
    )


def test_the_catalog_of_the_settings_finds_dead_patterns(tmp_path: Path) -> None:
    config = tmp_path / "esclusa.yaml"
    config.write_text("models:\n  - {id: smollm2-135m-instruct, path: /nowhere, tier: small}\n", encoding="utf-8")
    result = policy("check", str(SEED), "--config", str(config))
    assert f"warning: `modelGroups.large[0]`: `{LARGE}` matches no model of the catalog" in result.stdout
    assert result.exit_code == 0


def test_tests_and_tables_of_a_folder_run_together() -> None:
    result = policy("test", str(SEED.parent))
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "77 passed, 0 failed")


def test_a_failing_test_ends_with_exit_1_and_says_what_came_out(file: Path) -> None:
    rewrite(file, TEXT.replace("groups: [small, routed, embedding, guardrails]", "groups: [routed]"))
    result = policy("test", str(file))
    assert result.exit_code == 1
    assert "FAILED an employee uses the small model: expected allow by `employee-small`, got deny" in result.stdout


def test_an_explanation_names_the_rule_and_the_reason_of_every_other() -> None:
    result = policy("explain", str(SEED), "--role", "employee", "--model", LARGE)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"deny: no rule grants `chat` on `{LARGE}` (rule none)")
    assert "unmatched allow analyst-all: subjects" in result.stdout


def test_an_option_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean `chat`"):
        CliRunner().invoke(app, ["explain", str(SEED), "--action", "chatt"], catch_exceptions=False)


def test_the_schema_knows_every_field_of_a_document() -> None:
    schema = json.loads(policy("schema").stdout)
    assert {"apiVersion", "rules", "roleBindings", "modelGroups", "limits", "tests"} <= set(schema["properties"])
    assert schema["additionalProperties"] is False


def test_two_files_are_compared_rule_by_rule_and_as_text(file: Path) -> None:
    result = policy("diff", str(SEED), str(file))
    assert result.stdout.splitlines()[0] == "changed  rules.employee-small"
    assert "+    obligations: {maxOutputTokens: 1024, " in result.stdout


def test_a_file_that_does_not_exist_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        CliRunner().invoke(app, ["check", "/nowhere/policy.yaml"], catch_exceptions=False)


def test_remote_commands_say_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ESCLUSA_URL", raising=False)
    result = policy("simulate", str(SEED))
    assert (result.exit_code, result.stderr) == (
        2,
        "error: this needs --url and --token (or ESCLUSA_URL and ESCLUSA_TOKEN)\n",
    )


@pytest.fixture
async def remote(database_url: str) -> AsyncIterator[Remote]:
    """Runs a command against the policy routes behind a real HTTP server."""
    decisions = [past(1, "elena", "smollm2-135m-instruct", Effect.ALLOW), past(2, "anita", LARGE, Effect.DENY)]
    async with policy_stage(database_url, past=decisions) as stage:
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(stage.app, log_config=None, lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        async def run(*words: str, token: str = "petra") -> Result:
            return await asyncio.to_thread(policy, *words, "--url", url, "--token", token)

        yield run
        server.should_exit = True
        await serving


async def test_a_policy_is_applied_through_the_admin_api(remote: Remote, file: Path) -> None:
    result = await remote("apply", str(file), "--reason", "tighter")
    assert result.exit_code == 0
    assert result.stdout.startswith('version 2 is in force, ETag "v2-')


async def test_a_dry_run_shows_the_changes_and_writes_nothing(remote: Remote, file: Path) -> None:
    result = await remote("apply", str(file), "--dry-run")
    assert (result.exit_code, result.stdout) == (0, "changed  rules.employee-small\n")
    assert "version 2 is" in (await remote("apply", str(file))).stdout


async def test_a_refusal_ends_with_exit_1_and_the_code(remote: Remote, file: Path) -> None:
    result = await remote("apply", str(file), token="anita")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: not_permitted: ")


async def test_an_invalid_document_ends_with_exit_2(remote: Remote, file: Path) -> None:
    rewrite(file, TEXT.replace("effect: allow", "efect: allow", 1))
    result = await remote("apply", str(file))
    assert result.exit_code == 2
    assert f"unknown_field: line {line_of('effect: allow')}, column 5: unknown field `efect`" in result.stderr


async def test_the_policy_in_force_is_compared_with_a_file(remote: Remote, file: Path) -> None:
    await remote("apply", str(file))
    assert "changed  rules.employee-small" in (await remote("diff", "current", str(SEED))).stdout
    assert (await remote("diff", "v1", str(SEED))).stdout == ""


async def test_a_simulation_lists_flips_and_ends_with_exit_1(remote: Remote) -> None:
    result = await remote("simulate", str(SEED), token="plato")
    assert result.exit_code == 1
    assert f"1 x of 1 caller: chat {LARGE}: deny -> allow (analyst-all)" in result.stdout
    listed = await remote("simulate", str(SEED), "--each", token="plato")
    assert f"anita chat {LARGE}: deny -> allow (analyst-all)" in listed.stdout
    assert result.stdout.splitlines()[-1] == "2 replayed, 0 allow -> deny, 1 deny -> allow, 0 skipped"


async def test_a_simulation_sums_up_and_speaks_of_others(remote: Remote, file: Path) -> None:
    """Petra may not read the audit trail: she is told how many requests change, and none of them."""
    rewrite(
        file,
        TEXT.replace(
            "    models: {groups: [small, routed, embedding, guardrails]}", "    models: {groups: [routed]}"
        ).partition("\ntests:")[0],
    )
    told = (await remote("simulate", str(file), token="plato")).stdout
    assert "1 x of 1 caller: chat smollm2-135m-instruct: allow -> deny (no rule grants `chat`" in told
    assert "you" not in told
    counted = await remote("simulate", str(file))
    assert counted.exit_code == 1
    assert "2 more are counted and not listed (listing needs `audit.read`)" in counted.stdout


async def test_an_explanation_comes_from_the_policy_in_force(remote: Remote) -> None:
    result = await remote("explain", "--role", "analyst", "--model", LARGE, "--json")
    assert json.loads(result.stdout)["rule_id"] == "analyst-all"


async def test_a_gateway_that_does_not_answer_ends_with_exit_1(file: Path) -> None:
    result = await asyncio.to_thread(policy, "apply", str(file), "--url", "http://127.0.0.1:1", "--token", "t")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: unreachable: ")


async def test_a_policy_is_applied_straight_to_the_database(
    database_url: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("ESCLUSA_AUDIT__SPOOL_DIR", str(tmp_path / "spool"))
    for expected in (1, 2):
        result = await asyncio.to_thread(policy, "apply", str(file), "--database", "--json")
        assert json.loads(result.stdout)["version"]["version"] == expected
    engine = make_engine(database_url)
    stored = await PolicyRepository(engine).current()
    await engine.dispose()
    assert stored is not None
    assert (stored.content.source, stored.content.author.issuer) == (SMALLER, "esclusa-cli")


async def test_a_dry_run_on_the_database_shows_the_changes_and_writes_nothing(
    database_url: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("ESCLUSA_AUDIT__SPOOL_DIR", str(tmp_path / "spool"))
    empty = await asyncio.to_thread(policy, "apply", str(SEED), "--database", "--dry-run")
    assert (empty.exit_code, empty.stdout) == (0, "added    policy\n")
    assert (await asyncio.to_thread(policy, "apply", str(SEED), "--database")).exit_code == 0
    changed = await asyncio.to_thread(policy, "apply", str(file), "--database", "--dry-run")
    assert (changed.exit_code, changed.stdout) == (0, "changed  rules.employee-small\n")
    engine = make_engine(database_url)
    current = await PolicyRepository(engine).current()
    await engine.dispose()
    assert current is not None
    assert current.version == 1


async def test_a_change_straight_in_the_database_is_an_audit_event_too(
    database_url: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("ESCLUSA_AUDIT__SPOOL_DIR", str(tmp_path / "spool"))
    await asyncio.to_thread(policy, "apply", str(SEED), "--database", "--reason", "installation")
    await asyncio.to_thread(policy, "apply", str(file), "--database", "--reason", "shorter answers")
    engine = make_engine(database_url)
    async with engine.connect() as connection:
        rows = (
            (await connection.execute(text("SELECT * FROM audit_event WHERE phase = 'admin' ORDER BY ts")))
            .mappings()
            .all()
        )
    await engine.dispose()
    first, second = (json.loads(row["rec"]) for row in rows)
    assert (rows[0]["personal"]["reason"], first["who"]["issuer"]) == ("installation", "esclusa-cli")
    assert second["admin"]["before_etag"] == first["admin"]["after_etag"]
    assert rows[1]["personal"]["diff"]["changes"][0]["path"] == "rules.employee-small"
    assert rows[1]["subject"] == getuser()


async def test_a_change_whose_audit_event_cannot_be_kept_is_not_made(
    database_url: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    (tmp_path / "a-file").write_text("in the way")
    monkeypatch.setenv("ESCLUSA_AUDIT__SPOOL_DIR", str(tmp_path / "a-file" / "spool"))
    result = await asyncio.to_thread(policy, "apply", str(file), "--database")
    assert isinstance(result.exception, ConfigError)
    assert "nothing was changed" in str(result.exception)
    engine = make_engine(database_url)
    assert await PolicyRepository(engine).current() is None
    await engine.dispose()


async def test_a_policy_whose_tests_fail_is_not_written_to_the_database(
    database_url: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    rewrite(file, TEXT.replace("groups: [small, routed, embedding, guardrails]", "groups: [routed]"))
    result = await asyncio.to_thread(policy, "apply", str(file), "--database")
    assert isinstance(result.exception, ConfigError)
    assert "an employee uses the small model" in str(result.exception)
