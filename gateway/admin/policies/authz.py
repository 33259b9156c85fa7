"""`/admin/v1/authz:explain`: why somebody may or may not do something, by the code that enforces it.

Permission `policy.read`, for callers of one's own tenant; what they have used needs `limits.read` too.
Renders what `gateway.access.decision.explain` found; decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import AwareDatetime, BaseModel, Field

from gateway.access.decision.explain import Explanation, explain
from gateway.access.decision.third_person import about_others
from gateway.access.history.service import AccessService
from gateway.access.history.versions import StoredVersion
from gateway.admin.bodies import AdminBody, json_body, read_model
from gateway.admin.guard import AdminCall, PermissionGuard
from gateway.admin.models import card_of
from gateway.admin.reach import holds, reach_of
from gateway.admin.recording import reading
from gateway.api.bounds import JsonObject
from gateway.errors import InvalidRequest, NotFound, Unavailable
from gateway.flow.context import Client, RequestContext
from gateway.flow.values import LimitRule, Principal
from gateway.limits.service import LimitService
from gateway.limits.store import StoreUnavailable

ReadClaims = Callable[[Mapping[str, Any]], Principal]
"""Claims of a token, as if they were verified, to a principal. Raises `GatewayError`."""


class LimitUse(BaseModel):
    """The use of one limit in its current window."""

    id: str
    scope_key: str
    requests: int = 0
    tokens: int = 0
    cost_micro: int = 0
    in_flight: int = 0


Words = list[Annotated[str, Field(max_length=512)]]


class PrincipalBody(AdminBody):
    tenant: str | None = Field(None, max_length=256, description="yours when left out; others need `tenants.all`")
    issuer: str = Field("https://idp.example", max_length=512)
    subject: str = Field("somebody", max_length=256)
    kind: Literal["user", "service"] = "user"
    roles: Words = Field([], max_length=512, fail_fast=True)
    groups: Words = Field([], max_length=512, fail_fast=True)
    scopes: Words = Field([], max_length=512, fail_fast=True)
    department: str | None = Field(None, max_length=256)
    clearance: str | None = Field(None, max_length=64)
    client_id: str | None = Field(None, max_length=256)
    provider: str | None = Field(None, max_length=128)
    narrowed_models: Words | None = Field(None, max_length=1000, fail_fast=True)


class SituationBody(AdminBody):
    data_class: str | None = Field(None, max_length=64)
    purpose: str | None = Field(None, max_length=256)
    source: str | None = Field(None, max_length=64)
    at: AwareDatetime | None = None


class ExplainBody(AdminBody):
    """Either `principal` or `claims`."""

    principal: PrincipalBody | None = None
    claims: JsonObject | None = None
    action: str = Field(max_length=64)
    model: str | None = Field(None, max_length=256)
    context: SituationBody = SituationBody()
    version: int | None = Field(None, ge=1, le=2**31 - 1, description="explain by an older version")


class RoleView(BaseModel):
    role: str
    origin: str


class RuleView(BaseModel):
    id: str
    effect: Literal["allow", "deny"]
    part: Literal["decides", "agrees", "loses", "unmatched"]
    why: str


class ExplainView(BaseModel):
    object: Literal["authz.explanation"] = "authz.explanation"
    decision: Literal["allow", "deny"]
    rule_id: str | None
    reason: str
    hidden: bool
    policy_version: int
    policy_sha256: str
    roles: list[RoleView]
    undeclared_roles: list[str]
    charged_department: str | None
    matched: list[str]
    losing: list[str]
    rules: list[RuleView]
    obligations: dict[str, Any]
    limits: list[dict[str, Any]]
    limit_use: list[LimitUse] | None = Field(None, description="null without `limits.read`")


def routes(
    service: AccessService,
    guard: PermissionGuard,
    *,
    claims: ReadClaims | None = None,
    limits: LimitService | None = None,
) -> APIRouter:
    router = APIRouter(prefix="/admin/v1", tags=["policies"])
    may_read = Depends(guard.require("policy.read"))

    @router.post(
        "/authz:explain",
        summary="Explain a decision: matched, unmatched and losing rules, roles, obligations, limits",
        response_model=ExplainView,
        openapi_extra=json_body(ExplainBody),
    )
    async def explain_decision(request: Request, call: AdminCall = may_read) -> ExplainView:
        async with reading(guard, call, "authz:explain"):
            body = await read_model(request, ExplainBody)
            principal = _principal(body, claims, call.principal.tenant)
            reach_of(service, call).require(principal.tenant, "principal.tenant" if body.claims is None else "claims")
            model = None if body.model is None else card_of(service, body.model, "model")
            snapshot = service.snapshot
            if body.version is not None and body.version != snapshot.version:
                snapshot = service.compile(await _stored(service, body.version))
            found = explain(snapshot, principal, body.action, model, _context(call, body.context))
            used = None
            if limits is not None and found.decision.limits and holds(service, call, "limits.read"):
                used = await _used(limits, found.decision.limits)
        return _view(found, used)

    return router


def _principal(body: ExplainBody, claims: ReadClaims | None, own_tenant: str) -> Principal:
    if (body.principal is None) == (body.claims is None):
        raise InvalidRequest("Expected either `principal` or `claims`.", code="invalid_value", param="principal")
    if body.claims is not None:
        if claims is None:
            raise InvalidRequest("Claims cannot be read here.", code="invalid_value", param="claims")
        return claims(body.claims)
    given = body.principal or PrincipalBody()
    return Principal(
        tenant=own_tenant if given.tenant is None else given.tenant,
        issuer=given.issuer,
        subject=given.subject,
        kind=given.kind,
        roles=frozenset(given.roles),
        groups=frozenset(given.groups),
        scopes=frozenset(given.scopes),
        department=given.department,
        clearance=given.clearance,
        client_id=given.client_id,
        provider=given.provider,
        narrowed_models=None if given.narrowed_models is None else tuple(given.narrowed_models),
    )


def _context(call: AdminCall, given: SituationBody) -> RequestContext:
    return replace(
        call.context,
        received_at=given.at.astimezone(UTC) if given.at is not None else call.context.received_at,
        client=Client(ip=given.source),
        data_class=given.data_class,
        purpose=given.purpose,
    )


async def _stored(service: AccessService, version: int) -> StoredVersion:
    stored = await service.repository.get(version) if service.repository is not None else None
    if stored is None:
        raise NotFound(f"There is no policy version {version}.", code="version_not_found", param="version")
    return stored


async def _used(limits: LimitService, rules: Sequence[LimitRule]) -> list[LimitUse]:
    try:
        found = await limits.usage(rules)
    except StoreUnavailable:
        raise Unavailable("The counters cannot be read now.", code="limits_unavailable") from None
    return [
        LimitUse(
            id=bound.rule.id,
            scope_key=bound.rule.scope_key,
            requests=tally.requests,
            tokens=tally.used_in + tally.used_out,
            cost_micro=tally.used_cost,
            in_flight=tally.in_flight,
        )
        for bound, tally in found
    ]


def _view(found: Explanation, used: list[LimitUse] | None) -> ExplainView:
    decision = found.decision
    return ExplainView(
        decision=decision.effect.value,
        rule_id=decision.rule_id,
        reason=about_others(decision.reason),
        hidden=decision.hidden,
        policy_version=decision.policy_version,
        policy_sha256=decision.policy_sha256,
        roles=[RoleView(role=origin.role, origin=origin.origin) for origin in found.roles],
        undeclared_roles=list(found.undeclared_roles),
        charged_department=found.charged_department,
        matched=list(decision.matched),
        losing=list(found.having("loses")),
        rules=[RuleView(id=t.id, effect=t.effect, part=t.part, why=t.why) for t in found.rules],
        obligations=asdict(decision.obligations),
        limits=[asdict(rule) for rule in decision.limits],
        limit_use=used,
    )
