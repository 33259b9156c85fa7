"""Response models of the policy routes, built from the access domain's values."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, Field

from gateway.access.decision.simulation import Flip, Simulation
from gateway.access.decision.third_person import about_others
from gateway.access.document.diff import Difference
from gateway.access.document.model import PolicySet
from gateway.access.document.problems import Problem
from gateway.access.history.versions import Author, Proposal, StoredVersion
from gateway.admin.bodies import Page
from gateway.admin.reach import Reach
from gateway.flow.values import Effect


class Person(BaseModel):
    """All null for somebody of another tenant, unless one sees all tenants."""

    tenant: str | None = None
    issuer: str | None = None
    subject: str | None = None
    display: str | None = None


class Finding(BaseModel):
    """`path` points into the document, `line` and `column` into a YAML text."""

    severity: Literal["error", "warning"]
    kind: str
    message: str
    path: str | None = None
    line: int | None = None
    column: int | None = None
    hint: str | None = None


class VersionView(BaseModel):
    object: Literal["policy.version"] = "policy.version"
    version: int
    etag: str
    sha256: str
    author: Person
    approver: Person | None = None
    reason: str
    origin: Literal["seed", "change", "restore", "binding"]
    restored_from: int | None = None
    created_at: datetime


class VersionDetail(VersionView):
    syntax: Literal["yaml", "json"]
    source: str = Field(description="the document exactly as it was written")


class VersionPage(Page):
    data: list[VersionView]


class Change(BaseModel):
    path: str
    kind: Literal["added", "removed", "changed"]
    before: Any = None
    after: Any = None


class DiffView(BaseModel):
    object: Literal["policy.diff"] = "policy.diff"
    from_version: int
    to_version: int
    changes: list[Change]
    text: str = Field(description="unified diff of the two texts")


class ProposalView(BaseModel):
    object: Literal["policy.proposal"] = "policy.proposal"
    id: UUID
    state: Literal["pending", "approved", "rejected"]
    base_version: int
    sha256: str
    author: Person
    reason: str
    created_at: datetime
    decided_by: Person | None = None
    decided_at: datetime | None = None
    version: int | None = None
    changes: list[Change] | None = None


class ProposalPage(Page):
    data: list[ProposalView]


class WriteView(BaseModel):
    """The new version (200), or the proposal that waits for a second person (202)."""

    object: Literal["policy.write"] = "policy.write"
    version: VersionView | None = None
    proposal: ProposalView | None = None
    warnings: list[Finding] = []
    replayed: bool = Field(False, description="true when this `Idempotency-Key` had already been served")


class ObjectionView(BaseModel):
    code: str
    message: str


class ValidationView(BaseModel):
    object: Literal["policy.validation"] = "policy.validation"
    valid: bool
    sha256: str | None = None
    errors: list[Finding] = []
    warnings: list[Finding] = []
    changes: list[Change] = Field([], description="against the policy in force")
    objection: ObjectionView | None = Field(None, description="why you would be refused to write it now")


class FlipView(BaseModel):
    request_id: UUID
    at: datetime
    tenant: str
    subject: str | None
    department: str | None
    roles: list[str]
    action: str
    model: str | None
    before: Literal["allow", "deny"]
    after: Literal["allow", "deny"]
    before_rule: str | None
    after_rule: str | None
    reason: str
    known_cause: bool = Field(description="false when the policy in force would not repeat the recorded decision")


class SimulationView(BaseModel):
    object: Literal["policy.simulation"] = "policy.simulation"
    replayed: int
    skipped: int = Field(description="decisions on models that are no longer in the catalog")
    allow_to_deny: int
    deny_to_allow: int
    flips: list[FlipView] = Field(description="empty without `audit.read`; then only the numbers are shown")
    flips_left_out: int = 0
    warnings: list[Finding] = []


def person(author: Author | None, reach: Reach) -> Person | None:
    if author is None:
        return None
    if not reach.covers(author.tenant):
        return Person()
    return Person(tenant=author.tenant, issuer=author.issuer, subject=author.subject, display=author.display)


def version_view(stored: StoredVersion, reach: Reach) -> VersionView:
    return VersionView(**_version_fields(stored, reach))


def version_detail(stored: StoredVersion, reach: Reach) -> VersionDetail:
    return VersionDetail(**_version_fields(stored, reach), syntax=stored.content.syntax, source=stored.content.source)


def _version_fields(stored: StoredVersion, reach: Reach) -> dict[str, Any]:
    content = stored.content
    return {
        "version": stored.version,
        "etag": stored.etag,
        "sha256": content.sha256,
        "author": person(content.author, reach),
        "approver": person(content.approver, reach),
        "reason": content.reason,
        "origin": content.origin,
        "restored_from": content.restored_from,
        "created_at": stored.created_at,
    }


def document_view(document: PolicySet, stored: StoredVersion, reach: Reach) -> dict[str, Any]:
    """The document with the fields that the server sets, as `GET policies/current` shows it in JSON."""
    data = document.to_data()
    author = person(stored.content.author, reach) or Person()
    data["metadata"] |= {
        "version": stored.version,
        "etag": stored.etag,
        "author": author.display or author.subject or "another tenant",
        "createdAt": stored.created_at.isoformat(),
    }
    return data


def finding(problem: Problem) -> Finding:
    return Finding(
        severity=problem.severity,
        kind=problem.kind,
        message=problem.message,
        path=problem.pointer or None,
        line=problem.location.line if problem.location else None,
        column=problem.location.column if problem.location else None,
        hint=problem.hint,
    )


def change_view(difference: Difference) -> Change:
    return Change(path=difference.path, kind=difference.kind, before=difference.before, after=difference.after)


def proposal_view(proposal: Proposal, reach: Reach, changes: list[Change] | None = None) -> ProposalView:
    author = person(proposal.content.author, reach)
    assert author is not None  # every proposal has an author
    return ProposalView(
        id=proposal.id,
        state=proposal.state,
        base_version=proposal.base_version,
        sha256=proposal.content.sha256,
        author=author,
        reason=proposal.content.reason,
        created_at=proposal.created_at,
        decided_by=person(proposal.decided_by, reach),
        decided_at=proposal.decided_at,
        version=proposal.version,
        changes=changes,
    )


def simulation_view(result: Simulation, warnings: list[Finding], *, limit: int, show_flips: bool) -> SimulationView:
    """Single requests are shown to who may read the audit trail; whoever changes the policy need not."""
    shown = result.flips[:limit] if show_flips else ()
    return SimulationView(
        replayed=result.replayed,
        skipped=result.skipped,
        allow_to_deny=result.count(Effect.DENY),
        deny_to_allow=result.count(Effect.ALLOW),
        flips=[_flip_view(flip) for flip in shown],
        flips_left_out=len(result.flips) - len(shown),
        warnings=warnings,
    )


def _flip_view(flip: Flip) -> FlipView:
    past, decision = flip.past, flip.decision
    return FlipView(
        request_id=past.request_id,
        at=past.at,
        tenant=past.principal.tenant,
        subject=past.principal.subject,
        department=past.principal.department,
        roles=sorted(past.principal.roles),
        action=past.action,
        model=past.model,
        before=past.effect.value,
        after=decision.effect.value,
        before_rule=past.rule_id,
        after_rule=decision.rule_id,
        reason=about_others(decision.reason),
        known_cause=flip.known_cause,
    )
