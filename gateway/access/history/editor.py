"""Changes of the policy: check, guard, write or propose, restore, approve. The only way to a new version.

Owns the order of these steps. What is right is decided by `compiler`, `decision_tests` and `grants`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from gateway.access.decision.compiled_policy import Snapshot
from gateway.access.decision.compiler import compile_policy, find_warnings, located
from gateway.access.decision.decision_tests import failing_tests
from gateway.access.decision.effective_subject import break_glass_of
from gateway.access.decision.evaluator import evaluate
from gateway.access.document.model import PolicySet
from gateway.access.document.parsing import parse_source
from gateway.access.document.problems import PolicyInvalid, Problem
from gateway.access.document.source import MAX_BYTES, Source, read_source
from gateway.access.history.grants import first_objection
from gateway.access.history.own_rights import first_gain
from gateway.access.history.repository import PolicyRepository
from gateway.access.history.service import AccessService
from gateway.access.history.versions import (
    SYSTEM,
    AlreadyDecided,
    Author,
    NewVersion,
    Origin,
    Proposal,
    StaleVersion,
    StoredVersion,
    Syntax,
    author_of,
)
from gateway.errors import (
    Conflict,
    InvalidDocument,
    NotFound,
    NotPermitted,
    Objection,
    PreconditionFailed,
    PreconditionRequired,
    RequestTooLarge,
    Unavailable,
    UnknownField,
)
from gateway.flow.context import IdSource, RequestContext
from gateway.flow.values import Principal
from gateway.storage.idempotency import KeyTaken, RequestKey, request_key

_ETAG = re.compile(r'"v([0-9]{1,10})-[0-9a-f]+"\Z')


@dataclass(frozen=True, slots=True)
class Candidate:
    """A document that compiles and passes its own tests."""

    source: Source
    syntax: Syntax
    snapshot: Snapshot
    warnings: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A request for a new version. `if_match` is the `If-Match` header as sent."""

    author: Principal
    context: RequestContext
    if_match: str | None
    reason: str = ""
    idempotency_key: str | None = None
    origin: Origin = "change"
    restored_from: int | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """Exactly one of `stored` and `proposal`. `before` is the version that was in force; None when replayed."""

    stored: StoredVersion | None = None
    proposal: Proposal | None = None
    before: StoredVersion | None = None
    warnings: tuple[Problem, ...] = ()
    replayed: bool = False
    break_glass: tuple[str, ...] = ()
    """Emergency bindings that whoever made this step held roles by."""


OwnedAccounts = Callable[[Principal], Awaitable[Sequence[Principal]]]
"""The service accounts of a person, each with the rights that its owner could give it. Raises `Unavailable`."""
SeenAs = Callable[[Principal], Awaitable[Sequence[Principal]]]
"""What a principal, and the owner of an account, were lately known as. Raises `Unavailable`."""


async def nobody(author: Principal) -> Sequence[Principal]:
    del author
    return ()


class PolicyEditor:
    """Without `owned` nobody has service accounts; without `seen` nobody is more than the token in hand."""

    def __init__(
        self, service: AccessService, ids: IdSource, owned: OwnedAccounts = nobody, seen: SeenAs = nobody
    ) -> None:
        self._service = service
        self._ids = ids
        self._owned, self._seen = owned, seen
        # One change at a time in this replica: of many that race, all but the winner are refused without the database.
        self._changing = asyncio.Lock()

    @property
    def repository(self) -> PolicyRepository:
        """Raises `Unavailable` where the policy is a file, which has no history."""
        if self._service.repository is None:
            raise Unavailable("The policy is read from a file here; it has no history.", code="policy_unavailable")
        return self._service.repository

    async def current(self) -> StoredVersion:
        """The version in force according to the database, not as this replica last saw it."""
        stored = await self.repository.current()
        if stored is None:
            raise Unavailable("The policy is not available.", code="policy_unavailable")
        return stored

    async def version(self, number: int) -> StoredVersion:
        stored = await self.repository.get(number)
        if stored is None:
            raise NotFound(f"There is no policy version {number}.", code="version_not_found")
        return stored

    async def examine(self, raw: bytes | str, syntax: Syntax, *, version: int = 0) -> Candidate:
        """Raises `RequestTooLarge` or `PolicyInvalid` with every problem found."""
        if len(raw) > MAX_BYTES:
            raise RequestTooLarge("A policy document may have at most 1 MiB.")
        return await asyncio.to_thread(self._check, raw, syntax, version)

    async def check(self, raw: bytes | str, syntax: Syntax, *, version: int = 0) -> Candidate:
        """Raises `RequestTooLarge`, `UnknownField` or `InvalidDocument` (422) for the first problem."""
        try:
            return await self.examine(raw, syntax, version=version)
        except PolicyInvalid as error:
            raise refused_document(error) from None

    async def objection(
        self, base: Snapshot, candidate: Candidate, author: Principal, context: RequestContext
    ) -> Objection | None:
        """Why this author may not turn `base` into the candidate, or None."""
        decide = partial(first_objection, four_eyes=True)
        if not self._service.settings.four_eyes:
            decide = partial(first_objection, owned=await self._owned(author), seen=await self._seen(author))
        return await asyncio.to_thread(decide, base, candidate.snapshot, author, context)

    async def change(self, raw: bytes | str, syntax: Syntax, change: Change) -> Written:
        """Raises, besides `check`: `PreconditionRequired` (428), `PreconditionFailed` (412), `NotPermitted` (403
        `cannot_grant_beyond_own_rights`), `Conflict` (409 `would_lock_out`, `idempotency_key_reused`)."""
        if change.if_match is None or change.if_match.strip() == "*":
            raise PreconditionRequired(
                "`If-Match` must name the version that you changed.", hint="send the `ETag` of `GET policies/current`"
            )
        async with self._changing:
            return await self._change(raw, syntax, change)

    async def restore(self, number: int, change: Change) -> Written:
        """Makes version n the newest again, under the same guards as any other change."""
        old = await self.version(number)
        return await self.change(
            old.content.source, old.content.syntax, replace(change, origin="restore", restored_from=number)
        )

    async def approve(self, proposal_id: UUID, approver: Principal, context: RequestContext) -> Written:
        """By a second human who holds the right in the version in force in the database.

        A right that somebody was given after the proposal cannot count: that made a newer version, and a proposal on
        an older one is stale. Raises `NotPermitted` (403 `second_person_required`, `not_permitted`),
        `PreconditionFailed`, and what `change` raises.
        """
        proposal = await self._pending(proposal_id)
        second = author_of(approver)
        _demand_second_person(approver, second, proposal.content.author)
        before = await self.current()
        if before.version != proposal.base_version:
            raise _stale(before, approver)
        base = await asyncio.to_thread(self._service.compile, before)
        now = evaluate(base, approver, "policy.approve", None, context)
        if not now.allowed:
            raise NotPermitted(
                f"`policy.approve` is not permitted for you: {now.reason}",
                hint="ask a policy administrator for a role that grants it",
                detail=f"rule {now.rule_id}",
            )
        candidate = await self.check(proposal.content.source, proposal.content.syntax, version=before.version + 1)
        content = replace(proposal.content, approver=second)
        await self._require_permitted(before, candidate, Change(approver, context, None))
        try:
            stored = await self.repository.append(content, expected=proposal.base_version, proposal=proposal_id)
        except StaleVersion:
            raise _stale(await self.current(), approver) from None
        except AlreadyDecided:
            raise _already_decided() from None
        await self._service.refresh()
        return Written(
            stored=stored,
            proposal=await self.repository.proposal(proposal_id),
            before=before,
            warnings=candidate.warnings,
            break_glass=break_glass_of(base, approver, context.received_at),
        )

    async def reject(self, proposal_id: UUID, by: Principal) -> Proposal:
        await self._pending(proposal_id)
        rejected = await self.repository.reject(proposal_id, author_of(by))
        if rejected is None:
            raise _already_decided()
        return rejected

    async def _change(self, raw: bytes | str, syntax: Syntax, change: Change) -> Written:
        if_match = (change.if_match or "").strip()
        key = _idempotency_key(raw, change)
        if key is not None:
            replayed = await self._replay(key)
            if replayed is not None:
                return replayed
        if self._service.stored is not None and _is_older(if_match, self._service.stored):
            raise _stale(self._service.stored, change.author)
        before = await self.current()
        if if_match != before.etag:
            raise _stale(before, change.author)
        candidate = await self.check(raw, syntax, version=before.version + 1)
        base = await self._require_permitted(before, candidate, change)
        warnings = candidate.warnings + await self._own_gain(base, candidate, change)
        glass = break_glass_of(base, change.author, change.context.received_at)
        content = NewVersion(
            source=candidate.source.text,
            syntax=syntax,
            sha256=candidate.snapshot.sha256,
            known_models=tuple(sorted(card.id for card in self._service.catalog)),
            author=author_of(change.author),
            reason=change.reason,
            origin=change.origin,
            restored_from=change.restored_from,
        )
        try:
            if self._service.settings.four_eyes:
                proposal = await self.repository.propose(self._ids.uuid7(), content, base=before.version, key=key)
                return Written(proposal=proposal, before=before, warnings=warnings, break_glass=glass)
            stored = await self.repository.append(content, expected=before.version, key=key)
        except StaleVersion:
            raise _stale(await self.current(), change.author) from None
        except KeyTaken:
            raise Conflict(
                "A request with this `Idempotency-Key` is being served.", code="request_in_progress"
            ) from None
        await self._service.refresh()
        return Written(stored=stored, before=before, warnings=warnings, break_glass=glass)

    async def _own_gain(self, base: Snapshot, candidate: Candidate, change: Change) -> tuple[Problem, ...]:
        """With four eyes an author may propose what they gain by; it is said, in the answer and on record."""
        if not self._service.settings.four_eyes:
            return ()
        owned, seen, author = await self._owned(change.author), await self._seen(change.author), change.author
        gain = await asyncio.to_thread(first_gain, base, candidate.snapshot, author, owned, change.context, seen)
        return () if gain is None else (Problem(gain.sentence, severity="warning", kind="own_gain"),)

    async def _pending(self, proposal_id: UUID) -> Proposal:
        proposal = await self.repository.proposal(proposal_id)
        if proposal is None:
            raise NotFound("There is no such proposal.", code="proposal_not_found")
        if proposal.state != "pending":
            raise Conflict(f"This proposal is already {proposal.state}.", code="already_decided")
        return proposal

    async def _require_permitted(self, before: StoredVersion, candidate: Candidate, change: Change) -> Snapshot:
        """The version in force, compiled, when the change is permitted."""
        base = await asyncio.to_thread(self._service.compile, before)
        objection = await self.objection(base, candidate, change.author, change.context)
        if objection is None:
            return base
        raise objection.refusal()

    async def _replay(self, key: RequestKey) -> Written | None:
        found = await self.repository.replayed(key)
        if found is None:
            return None
        if isinstance(found, UUID):
            return Written(proposal=await self.repository.proposal(found), replayed=True)
        return Written(stored=await self.version(found), replayed=True)

    def _check(self, raw: bytes | str, syntax: Syntax, version: int) -> Candidate:
        source = read_source(raw, name="policy", syntax=syntax)
        snapshot = compile_policy(
            parse_source(source, PolicySet),
            version=version,
            catalog=self._service.catalog,
            known_models=frozenset(card.id for card in self._service.catalog),
            source=source,
        )
        failed = failing_tests(snapshot)
        if failed:
            raise PolicyInvalid(located(failed, source), source.name)
        warnings = find_warnings(snapshot, source, seals_content=self._service.seals_content)
        return Candidate(source, syntax, snapshot, tuple(warnings))


def _demand_second_person(approver: Principal, second: Author, author: Author) -> None:
    if approver.kind != "user":
        raise NotPermitted(
            "A change is approved by a person who signed in, not by a key or an application.",
            code="second_person_required",
            hint="send a token of your identity provider",
        )
    if second.is_same_as(author):
        raise NotPermitted(
            "A change cannot be approved by the person who proposed it, nor by who owns the account that did.",
            code="second_person_required",
            hint="ask somebody else who holds `policy.approve`",
        )


def _already_decided() -> Conflict:
    return Conflict("This proposal was decided in the meantime.", code="already_decided")


def refused_document(error: PolicyInvalid) -> UnknownField | InvalidDocument:
    """The first problem as a public error: place, what was found, what was expected."""
    first = error.problems[0]
    where = f"line {first.location.line}, column {first.location.column}: " if first.location else ""
    more = f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
    message, param = f"{where}{first.message}{more}", first.pointer or None
    if first.kind == "unknown_field":
        return UnknownField(message, param=param, hint=first.hint)
    code = "policy_test_failed" if first.kind == "failing_test" else "invalid_policy"
    return InvalidDocument(message, code=code, param=param, hint=first.hint)


def _is_older(etag: str, stored: StoredVersion) -> bool:
    """Does the tag name a version before one that this replica has already seen in force?"""
    match = _ETAG.match(etag)
    return match is not None and int(match.group(1)) < stored.version


def _stale(current: StoredVersion, reader: Principal) -> PreconditionFailed:
    """Names who wrote in between, unless that is a matter of another tenant."""
    author = current.content.author
    known = author.tenant in (reader.tenant, SYSTEM.tenant)
    name = author.display or author.subject if known else "somebody of another tenant"
    return PreconditionFailed(
        f"The policy is at version {current.version}, written by `{name}` at "
        f"{current.created_at:%Y-%m-%dT%H:%M:%SZ}; its ETag is {current.etag}.",
        hint="read `policies/current` again, reapply your change and send its ETag",
        headers={"ETag": current.etag},
    )


def _idempotency_key(raw: bytes | str, change: Change) -> RequestKey | None:
    parts = (change.origin, change.restored_from, change.if_match, change.reason)
    body = raw.encode() if isinstance(raw, str) else raw
    return request_key(author_of(change.author), change.idempotency_key, *parts, body)
