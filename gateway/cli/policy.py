"""`esclusa policy`: check, test, explain, diff, apply, simulate. Parses, calls, renders; decides nothing.

Exit codes: 0 fine, 1 a test failed or the gateway refused, 2 an invalid document.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from gateway.access.decision.compiled_policy import Snapshot
    from gateway.cli.policy_remote import AdminClient
    from gateway.flow.values import ModelCard

app = typer.Typer(help="Policy documents: check, test, explain, diff, apply, simulate.", no_args_is_help=True)

FILES = typer.Argument(..., help="Policy files, decision tables, or folders of them.")
FILE = typer.Argument(..., help="A policy file.")
CONFIG = typer.Option(None, "--config", help="Settings file (YAML); its models are the catalog.")
JSON = typer.Option(False, "--json", help="JSON on stdout.")
URL = typer.Option(None, "--url", envvar="ESCLUSA_URL", help="A gateway, e.g. http://127.0.0.1:8080.")
TOKEN = typer.Option(None, "--token", envvar="ESCLUSA_TOKEN", help="A bearer token for it.")
REASON = typer.Option("", "--reason", help="Why; kept with the version.")


@app.command()
def check(files: list[Path] = FILES, config: Path | None = CONFIG, as_json: bool = JSON) -> None:
    """Compile policies and print every error and warning with file, line and column. Runs no tests.

    Example: esclusa policy check policies/default.yaml
    """
    from gateway.access.document.problems import PolicyInvalid
    from gateway.cli.policy_files import is_table, load_policy, policy_paths

    catalog = _catalog(config)
    reports: list[dict[str, Any]] = []
    for path in policy_paths(files):
        try:
            if is_table(path):
                continue
            loaded = load_policy(path, catalog)
        except PolicyInvalid as error:
            reports.append(_report(path, error.problems, None))
        else:
            reports.append(_report(path, loaded.warnings, loaded.snapshot))
    if as_json:
        print(json.dumps(reports, ensure_ascii=False, indent=2))
    else:
        for report in reports:
            for problem in report["problems"]:
                print(problem["text"])
            if report["valid"]:
                print(f"{report['file']}: ok, {report['rules']} rules, sha256 {report['sha256'][:12]}")
    if not all(report["valid"] for report in reports):
        raise typer.Exit(2)


@app.command("test")
def run_tests(files: list[Path] = FILES, config: Path | None = CONFIG, as_json: bool = JSON) -> None:
    """Run the tests inside policies, and decision tables. Exit 1 when one fails.

    Example: esclusa policy test policies/
    """
    from gateway.cli.policy_files import policy_paths, run_file

    catalog = _catalog(config)
    rows = []
    for path in policy_paths(files):
        for result in run_file(path, catalog):
            rows.append(
                {
                    "file": str(path),
                    "test": result.name,
                    "passed": result.passed,
                    "expected": result.expected,
                    "found": result.found,
                }
            )
    failed = [row for row in rows if not row["passed"]]
    if as_json:
        print(json.dumps({"passed": len(rows) - len(failed), "failed": len(failed), "tests": rows}, ensure_ascii=False))
    else:
        for row in failed:
            print(f"{row['file']}: FAILED {row['test']}: expected {row['expected']}, got {row['found']}")
        print(f"{len(rows) - len(failed)} passed, {len(failed)} failed")
    if failed:
        raise typer.Exit(1)


@app.command()
def explain(
    file: Path | None = typer.Argument(None, help="A policy file; leave it out with --url."),
    action: str = typer.Option("chat", "--action", help="E.g. chat, audit.read."),
    model: str | None = typer.Option(None, "--model", help="Catalog id."),
    role: list[str] = typer.Option([], "--role", help="A role; repeat for several."),
    subject: str = typer.Option("somebody", "--sub", help="Subject of the token."),
    department: str | None = typer.Option(None, "--department"),
    tenant: str | None = typer.Option(None, "--tenant", help="Yours, or `default` with a file, when left out."),
    data_class: str | None = typer.Option(None, "--data-class"),
    purpose: str | None = typer.Option(None, "--purpose"),
    source: str | None = typer.Option(None, "--source", help="IP address of the caller."),
    at: str | None = typer.Option(None, "--at", help="Time of the request, e.g. 2026-11-30T09:00:00-05:00."),
    config: Path | None = CONFIG,
    url: str | None = URL,
    token: str | None = TOKEN,
    as_json: bool = JSON,
) -> None:
    """Say why somebody may or may not do something, rule by rule.

    Example: esclusa policy explain policies/default.yaml --role employee --model qwen2.5-coder-0.5b-instruct
    """
    from gateway.access.decision.third_person import about_others
    from gateway.cli.policy_files import explain_file

    if file is None:
        body = {
            "principal": {"tenant": tenant, "subject": subject, "roles": role, "department": department},
            "action": action,
            "model": model,
            "context": {"data_class": data_class, "purpose": purpose, "source": source, "at": at},
        }
        with _remote(url, token) as client:
            document = client.explain(body)
    else:
        given = {
            "tenant": tenant or "default",
            "subject": subject,
            "roles": tuple(role),
            "department": department,
            "action": action,
            "model": model,
            "dataClass": data_class,
            "purpose": purpose,
            "source": source,
            "at": at,
        }
        document = explain_file(file, given, _catalog(config))
    if as_json:
        print(json.dumps(document, ensure_ascii=False, indent=2))
        return
    print(f"{document['decision']}: {about_others(document['reason'])} (rule {document['rule_id'] or 'none'})")
    for held in document["roles"]:
        print(f"  role {held['role']} ({held['origin']})")
    for rule in document["rules"]:
        why = f": {rule['why']}" if rule["why"] else ""
        print(f"  {rule['part']:<9} {rule['effect']:<5} {rule['id']}{why}")


@app.command()
def diff(
    before: str = typer.Argument(..., help="A file; with --url also `current` or a version such as `v3`."),
    after: str = typer.Argument(..., help="A file; with --url also `current` or a version such as `v3`."),
    url: str | None = URL,
    token: str | None = TOKEN,
    as_json: bool = JSON,
) -> None:
    """Compare two policies rule by rule and as text.

    Example: esclusa policy diff current policies/default.yaml --url http://127.0.0.1:8080
    """
    from gateway.access.document.diff import differences, text_diff
    from gateway.access.document.parsing import parse_policy

    sides = [_side(name, url, token) for name in (before, after)]
    documents = [
        parse_policy(text, name=name, syntax=syntax)  # type: ignore[arg-type]
        for name, (text, syntax) in zip((before, after), sides, strict=True)
    ]
    changes = differences(documents[0], documents[1])
    text = text_diff(sides[0][0], sides[1][0], names=(before, after))
    if as_json:
        rows = [{"path": c.path, "kind": c.kind, "before": c.before, "after": c.after} for c in changes]
        print(json.dumps({"changes": rows, "text": text}, ensure_ascii=False, indent=2))
        return
    for change in changes:
        print(f"{change.kind:<8} {change.path}")
    print(text, end="")


@app.command()
def apply(
    file: Path = FILE,
    url: str | None = URL,
    token: str | None = TOKEN,
    database: bool = typer.Option(False, "--database", help="Write to the database of the settings, past the API."),
    if_match: str | None = typer.Option(None, "--if-match", help="ETag that must be in force; default: the current."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only say what would change."),
    reason: str = REASON,
    config: Path | None = CONFIG,
    as_json: bool = JSON,
) -> None:
    """Put a policy file in force, through a gateway's admin API or (installation, repair) in its database.

    Example: esclusa policy apply policies/default.yaml --url http://127.0.0.1:8080 --reason "more tokens for finance"
    """
    if database:
        document = _apply_to_database(file, config, reason, if_match, dry_run=dry_run)
    else:
        with _remote(url, token) as client:
            if dry_run:
                document = client.validate(file)
            else:
                document = client.put(file, etag=if_match or client.current().etag, reason=reason)
    if as_json:
        print(json.dumps(document, ensure_ascii=False, indent=2))
    else:
        _say_applied(document)
    if document.get("valid") is False:
        raise typer.Exit(2)


@app.command()
def simulate(
    file: Path = FILE,
    url: str | None = URL,
    token: str | None = TOKEN,
    limit: int = typer.Option(5000, "--limit", min=1, max=50_000, help="How many recorded decisions to replay."),
    each: bool = typer.Option(False, "--each", help="One line for every request instead of one for each kind."),
    as_json: bool = JSON,
) -> None:
    """Replay recorded decisions on a policy file and sum up those that would change. Exit 1 when some would.

    Example: esclusa policy simulate policies/next.yaml --url http://127.0.0.1:8080
    """
    with _remote(url, token) as client:
        result = client.simulate(file, limit=limit)
    if as_json:
        print(json.dumps(result, ensure_ascii=False, indent=2))
    else:
        for line in _flip_lines(result["flips"], each=each):
            print(line)
        if result["flips_left_out"]:
            print(f"{result['flips_left_out']} more are counted and not listed (listing needs `audit.read`)")
        print(
            f"{result['replayed']} replayed, {result['allow_to_deny']} allow -> deny, "
            f"{result['deny_to_allow']} deny -> allow, {result['skipped']} skipped"
        )
    if result["allow_to_deny"] or result["deny_to_allow"]:
        raise typer.Exit(1)


def _flip_lines(flips: Sequence[dict[str, Any]], *, each: bool) -> Iterator[str]:
    """One line for a request, or one for all that change alike: how many, of how many people, and by which rule."""
    if each:
        for flip in flips:
            yield f"{flip['at']} {flip['subject'] or '-'} {_flip_text(flip)}"
        return
    alike: dict[str, list[dict[str, Any]]] = {}
    for flip in flips:
        alike.setdefault(_flip_text(flip), []).append(flip)
    for text, group in sorted(alike.items(), key=lambda item: (-len(item[1]), item[0])):
        people = len({(flip["tenant"], flip["subject"]) for flip in group})
        yield f"{len(group)} x of {people} {'caller' if people == 1 else 'callers'}: {text}"


def _flip_text(flip: dict[str, Any]) -> str:
    cause = flip["after_rule"] or flip["reason"]
    return f"{flip['action']} {flip['model'] or '-'}: {flip['before']} -> {flip['after']} ({cause})"


@app.command()
def schema() -> None:
    """Print the JSON schema of a policy document, for editors.

    Example: esclusa policy schema > policy.schema.json
    """
    from gateway.access.document.model import PolicySet

    print(json.dumps(PolicySet.model_json_schema(), indent=2))


def _catalog(config: Path | None) -> Sequence[ModelCard]:
    """The models of the settings; none configured means that the catalog is unknown here."""
    if config is None:
        return ()
    from gateway.routing.catalog import catalog_from
    from gateway.settings import load_settings

    return catalog_from(load_settings(config)).all()


def _report(path: Path, problems: Sequence[Any], snapshot: Snapshot | None) -> dict[str, Any]:
    return {
        "file": str(path),
        "valid": snapshot is not None,
        "rules": len(snapshot.rules) if snapshot is not None else None,
        "sha256": snapshot.sha256 if snapshot is not None else None,
        "problems": [
            {
                "severity": problem.severity,
                "kind": problem.kind,
                "message": problem.message,
                "path": problem.pointer,
                "line": problem.location.line if problem.location else None,
                "column": problem.location.column if problem.location else None,
                "hint": problem.hint,
                "text": problem.render(str(path)),
            }
            for problem in problems
        ],
    }


def _side(name: str, url: str | None, token: str | None) -> tuple[str, str]:
    from gateway.cli.policy_files import read_file, syntax_of

    path = Path(name)
    if path.exists() or not (name == "current" or name.removeprefix("v").isdigit()):
        return read_file(path).text, syntax_of(path)
    with _remote(url, token) as client:
        if name == "current":
            current = client.current()
            return current.text, current.syntax
        stored = client.version(int(name.removeprefix("v")))
        return stored["source"], stored["syntax"]


def _apply_to_database(
    file: Path, config: Path | None, reason: str, if_match: str | None, *, dry_run: bool
) -> dict[str, Any]:
    import asyncio

    from gateway.cli.policy_database import apply_to_database, compare_with_database
    from gateway.errors import ConfigError, Unavailable
    from gateway.local.datastores import open_database
    from gateway.routing.catalog import catalog_from
    from gateway.settings import load_settings

    async def work() -> dict[str, Any]:
        settings = load_settings(config)
        async with open_database(settings) as database_url:
            if dry_run:
                changes = await compare_with_database(file, database_url, catalog=catalog_from(settings).all())
                listed_changes = [{"kind": change.kind, "path": change.path} for change in changes]
                return {"valid": True, "errors": [], "warnings": [], "changes": listed_changes, "objection": None}
            stored = await apply_to_database(
                file, database_url, settings, catalog=catalog_from(settings).all(), reason=reason, if_match=if_match
            )
        return {"version": {"version": stored.version, "etag": stored.etag}, "warnings": []}

    try:
        return asyncio.run(work())
    except Unavailable as error:
        raise ConfigError(error.message, hint="check DATABASE_URL; see `esclusa doctor`") from None


def _say_applied(document: dict[str, Any]) -> None:
    if "valid" in document:
        for problem in document["errors"] + document["warnings"]:
            print(f"{problem['severity']}: line {problem['line']}: {problem['message']}")
        for change in document["changes"]:
            print(f"{change['kind']:<8} {change['path']}")
        if document["objection"]:
            print(f"would be refused: {document['objection']['code']}: {document['objection']['message']}")
        return
    for warning in document["warnings"]:
        print(f"warning: {warning['message']}", file=sys.stderr)
    if document.get("version"):
        print(f"version {document['version']['version']} is in force, ETag {document['version']['etag']}")
    else:
        print(f"proposal {document['proposal']['id']} waits for a second person")


@contextmanager
def _remote(url: str | None, token: str | None) -> Iterator[AdminClient]:
    from gateway.cli.policy_remote import AdminClient, Refused

    if url is None or token is None:
        print("error: this needs --url and --token (or ESCLUSA_URL and ESCLUSA_TOKEN)", file=sys.stderr)
        raise typer.Exit(2)
    try:
        with AdminClient(url, token) as client:
            yield client
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2 if error.invalid else 1) from None
