"""The admin API: its routes, and the services that only they use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from fastapi import APIRouter

from gateway.access.decision.effective_subject import effective_subject
from gateway.access.history.editor import PolicyEditor
from gateway.access.history.service import AccessService
from gateway.admin import engines, limits, models
from gateway.admin.audit import content
from gateway.admin.audit import routes as audit
from gateway.admin.guard import AdminCall, PermissionGuard
from gateway.admin.identity import keys, revocations
from gateway.admin.policies import authz
from gateway.admin.policies import routes as policies
from gateway.admin.policies.claims_reader import ClaimsReader
from gateway.admin.policies.views import VersionDetail, version_detail
from gateway.admin.reach import reach_of
from gateway.audit.content_reader import ContentReader
from gateway.audit.reader import AuditReader
from gateway.flow.context import Clock, IdSource, RequestContext
from gateway.flow.operation import EngineOperator
from gateway.flow.values import Principal
from gateway.limits.service import LimitService
from gateway.storage.idempotency import IdempotencyStore
from gateway.wiring.identity import IdentityParts, account_service, revocation_service

SEEN = timedelta(days=30)
"""How long somebody counts as what the trail knows them as, where they change the policy."""


@dataclass(frozen=True, slots=True)
class AdminParts:
    """The services that the admin API governs."""

    access: AccessService
    identity: IdentityParts
    requests: IdempotencyStore
    limits: LimitService
    audit: AuditReader
    contents: ContentReader
    guard: PermissionGuard
    clock: Clock
    ids: IdSource
    node_id: str
    engines: EngineOperator | None = None
    """None where no model runs in this process."""


def admin_routers(parts: AdminParts) -> tuple[APIRouter, ...]:
    def held_roles(principal: Principal, context: RequestContext) -> frozenset[str]:
        return effective_subject(parts.access.snapshot, principal, context.received_at).roles

    accounts = account_service(parts.identity, parts.ids, held_roles)

    async def seen_as(author: Principal) -> Sequence[Principal]:
        names = [(author.issuer, author.subject), *(() if author.owner is None else (author.owner,))]
        since = parts.clock.now() - SEEN
        return [one for name in names for one in await parts.audit.seen_as(*name, since=since)]

    editor = PolicyEditor(parts.access, parts.ids, accounts.owned_by, seen_as)

    async def policy_version(call: AdminCall, version: int) -> VersionDetail:
        return version_detail(await editor.version(version), reach_of(parts.access, call))

    return (
        policies.routes(parts.access, editor, parts.guard, past=parts.audit),
        authz.routes(
            parts.access,
            parts.guard,
            claims=ClaimsReader(parts.identity.settings, parts.clock),
            limits=parts.limits,
        ),
        models.routes(parts.access, parts.guard),
        engines.routes(parts.engines, parts.requests, parts.guard, node_id=parts.node_id),
        limits.routes(parts.limits, parts.access, parts.guard),
        keys.routes(accounts, parts.guard),
        revocations.routes(revocation_service(parts.identity, parts.ids), parts.guard),
        audit.routes(parts.audit, parts.guard, policy_version),
        content.routes(parts.contents, parts.guard),
    )
