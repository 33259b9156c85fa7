"""`esclusa policy apply --database`: a version written without a gateway, for installation and repair. Prints nothing.

The rights of the author are not checked, because whoever holds the database holds everything; but nothing happens
without its audit event, which goes through this machine's spool like those of a gateway.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from getpass import getuser
from pathlib import Path

from gateway.access.document.diff import Difference, differences, summary
from gateway.access.document.parsing import parse_policy
from gateway.access.history.versions import Author, NewVersion, StaleVersion, StoredVersion
from gateway.cli.on_record import ISSUER
from gateway.cli.policy_files import LoadedPolicy, load_policy, run_file, syntax_of
from gateway.errors import ConfigError
from gateway.flow.values import AdminEvent, ModelCard, Principal
from gateway.settings import Settings
from gateway.wiring.commands import command_context, open_policies, start_audit

DEFAULT_REASON = "applied from the command line"


async def apply_to_database(
    path: Path,
    database_url: str,
    settings: Settings,
    *,
    catalog: Sequence[ModelCard],
    reason: str,
    if_match: str | None,
) -> StoredVersion:
    """The document must compile and pass its tests. The version and its audit event name the operating-system user.

    Raises `ConfigError` (also when the audit event could not be kept; nothing is written then) and `Unavailable`.
    """
    loaded = _checked(path, catalog)
    async with AsyncExitStack() as stack:
        engine, repository = await stack.enter_async_context(open_policies(database_url))
        current = await repository.current()
        if if_match is not None and (current is None or current.etag != if_match):
            raise ConfigError(
                f"the policy in force is {current.etag if current else 'none'}, not {if_match}",
                hint="look at it again before you overwrite it",
            )
        audit = await start_audit(engine, settings, stack)
        content = NewVersion(
            source=loaded.source.text,
            syntax=syntax_of(path),
            sha256=loaded.snapshot.sha256,
            known_models=tuple(sorted(card.id for card in catalog)),
            author=Author("-", ISSUER, getuser()),
            reason=reason or DEFAULT_REASON,
            origin="change" if current else "seed",
        )
        try:
            stored = await (
                repository.append(content, expected=current.version) if current else repository.seed(content)
            )
        except StaleVersion:
            raise ConfigError("somebody else changed the policy meanwhile", hint="look at it and try again") from None
        await audit.admin(event_of(current, stored))
        return stored


async def compare_with_database(
    path: Path, database_url: str, *, catalog: Sequence[ModelCard]
) -> tuple[Difference, ...]:
    """The changes `apply_to_database` would make; writes nothing. The document must compile and pass its tests."""
    loaded = _checked(path, catalog)
    async with open_policies(database_url) as (_, repository):
        current = await repository.current()
    if current is None:
        return (Difference("policy", "added"),)
    before = parse_policy(current.content.source, name="policy", syntax=current.content.syntax)
    return differences(before, loaded.snapshot.document)


def _checked(path: Path, catalog: Sequence[ModelCard]) -> LoadedPolicy:
    loaded = load_policy(path, catalog)
    failed = [result.name for result in run_file(path, catalog) if not result.passed]
    if failed:
        raise ConfigError(f"test `{failed[0]}` fails", file=str(path), hint="run `esclusa policy test`")
    return loaded


def event_of(before: StoredVersion | None, stored: StoredVersion) -> AdminEvent:
    """The audit event of such a change: who at the keyboard, why, and what changed."""
    author, after = stored.content.author, stored.content
    changes = None
    if before is not None:
        old = before.content
        changes = summary(
            differences(
                parse_policy(old.source, name="policy", syntax=old.syntax),
                parse_policy(after.source, name="policy", syntax=after.syntax),
            )
        )
    return AdminEvent(
        context=command_context("esclusa policy apply --database"),
        principal=Principal(author.tenant, author.issuer, author.subject),
        kind="admin",
        action="policy.write",
        target="policies/current",
        allowed=True,
        status=200,
        reason=after.reason,
        before_etag=before.etag if before is not None else None,
        after_etag=stored.etag,
        diff=changes,
        policy_version=stored.version,
    )
