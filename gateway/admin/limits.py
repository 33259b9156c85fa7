"""`/admin/v1/usage`, `/usage:reset` and `/budgets`. Permissions `limits.read` and `limits.write`.

Shows and clears the same counters that requests are held against, found by the same code that finds them for a
request. Only of the caller's own tenant. Holds no counter and decides no limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, Field

from gateway.access.decision.effective_subject import effective_subject
from gateway.access.decision.quotas import limits_for
from gateway.access.history.service import AccessService
from gateway.admin.bodies import AdminBody, Page, json_body, read_model
from gateway.admin.guard import AdminCall, PermissionGuard
from gateway.admin.models import card_of
from gateway.admin.recording import changing, reading
from gateway.errors import InvalidRequest, NotFound, Unavailable
from gateway.flow.values import LimitRule, Principal
from gateway.limits.claim import BoundRule, Tally
from gateway.limits.dimensions import DIMENSIONS, Dimension, Quantity
from gateway.limits.service import LimitService
from gateway.limits.store import StoreUnavailable
from gateway.limits.windows import is_rate

NOBODY = "-"
USER_FORM = "`<issuer>#<subject>`"
Name = Annotated[str | None, Query(min_length=1, max_length=1024)]


class Whose(AdminBody):
    """Whose windows. Without `user`, those of the department, the roles and the tenant."""

    user: str | None = Field(None, min_length=1, max_length=1024, description=USER_FORM)
    department: str | None = Field(None, min_length=1, max_length=1024)
    roles: tuple[Annotated[str, Field(max_length=128)], ...] = Field((), max_length=100, fail_fast=True)
    model: str | None = Field(None, min_length=1, max_length=1024, description="for limits that count per model")
    purpose: str | None = Field(None, min_length=1, max_length=256, description="for limits of a purpose")


class ResetBody(Whose):
    """`limits` names the rules to reset; left out, all windows that `user`, `department` or `roles` select."""

    limits: tuple[Annotated[str, Field(max_length=128)], ...] = Field((), max_length=100, fail_fast=True)
    reason: str = Field(min_length=1, max_length=2000)


class QuantityView(BaseModel):
    quantity: Quantity
    limit: int
    used: int = Field(description="settled")
    held: int = Field(description="claimed by requests in flight")
    remaining: int


class WindowView(BaseModel):
    object: Literal["usage.window"] = "usage.window"
    limit_id: str
    scope: str
    counter: str
    kind: Literal["rate", "budget"]
    window: str
    starts_at: datetime
    resets_at: datetime
    quantities: list[QuantityView]
    currency: str | None = Field(description="of `cost_micro`, in millionths")


class UsagePage(Page):
    data: list[WindowView]
    degraded: bool = Field(description="true while this replica enforces its local share")


class BudgetView(BaseModel):
    object: Literal["limit"] = "limit"
    id: str
    description: str
    scope: dict[str, str]
    kind: Literal["rate", "budget"]
    window: str
    tz: str
    quantities: dict[str, int]
    currency: str
    warn_at: list[float]
    on_store_error: Literal["deny", "local", "allow"]


class BudgetPage(Page):
    data: list[BudgetView]
    policy_version: int


def routes(service: LimitService, access: AccessService, guard: PermissionGuard) -> APIRouter:
    router = APIRouter(prefix="/admin/v1", tags=["limits"])
    may_read, may_write = Depends(guard.require("limits.read")), Depends(guard.require("limits.write"))

    @router.get("/usage", summary="Current windows: used, held, limit and reset", response_model=UsagePage)
    async def usage(
        user: Annotated[str | None, Query(min_length=1, max_length=1024, description=USER_FORM)] = None,
        department: Name = None,
        role: Annotated[list[Annotated[str, Field(max_length=128)]] | None, Query(max_length=100)] = None,
        model: Name = None,
        purpose: Name = None,
        call: AdminCall = may_read,
    ) -> UsagePage:
        whose = Whose(user=user, department=department, roles=tuple(role or ()), model=model, purpose=purpose)
        async with reading(guard, call, "usage") as event:
            page = await _page(service, _rules(access, call, whose))
            event.target = f"usage/{_target(whose)}"
        return page

    @router.get("/budgets", summary="The limits of the policy in force", response_model=BudgetPage)
    async def budgets(call: AdminCall = may_read) -> BudgetPage:  # noqa: ARG001 - the permission is the point
        views = [_budget(rule) for rule in _written(access)]
        return BudgetPage(data=views, total=len(views), policy_version=access.version)

    @router.post(
        "/usage:reset",
        summary="Forget what was used in the current windows",
        description="What requests in flight hold stays held, and is booked when they end.",
        response_model=UsagePage,
        openapi_extra=json_body(ResetBody),
    )
    async def reset(request: Request, call: AdminCall = may_write) -> UsagePage:
        async with changing(guard, call, "usage") as event:
            body = await read_model(request, ResetBody)
            event.target, event.reason = f"usage/{_target(body)}", body.reason
            rules = _selected(access, call, body)
            before = await _page(service, rules)
            try:
                await service.reset(rules)
            except StoreUnavailable as error:
                raise _unavailable(error) from error
            after = await _page(service, rules)
            event.diff = {"before": _used(before), "after": _used(after)}
        return after

    return router


def _selected(access: AccessService, call: AdminCall, body: ResetBody) -> tuple[LimitRule, ...]:
    """Resetting everything of a tenant must be said, not left out."""
    if not body.limits and body.user is None and body.department is None and not body.roles and body.model is None:
        raise InvalidRequest(
            "Nothing was selected to reset.",
            code="nothing_selected",
            hint="name a `user`, a `department`, `roles`, a `model` or `limits`",
        )
    rules = _rules(access, call, body)
    if not body.limits:
        named = {"user": body.user, "key": body.user, "department": body.department, "role": body.roles or None}
        return tuple(rule for rule in rules if named.get(rule.scope) or (rule.scope == "model" and body.model))
    unknown = sorted(set(body.limits) - {rule.id for rule in rules})
    if unknown:
        raise NotFound(
            f"No such limit applies here: {', '.join(f'`{name}`' for name in unknown)}.",
            code="limit_not_found",
            param="limits",
            hint="GET /admin/v1/budgets lists the limits of the policy",
        )
    return tuple(rule for rule in rules if rule.id in body.limits)


def _rules(access: AccessService, call: AdminCall, whose: Whose) -> tuple[LimitRule, ...]:
    """The limits that a request of this person would fall under, in the caller's tenant."""
    issuer, mark, subject = (whose.user or "").partition("#")
    if whose.user is not None and not (issuer and mark and subject):
        raise InvalidRequest(f"`user` must be {USER_FORM}.", code="invalid_user", param="user")
    principal = Principal(
        tenant=call.principal.tenant,
        issuer=issuer or NOBODY,
        subject=subject or NOBODY,
        roles=frozenset(whose.roles),
        department=whose.department,
    )
    snapshot = access.snapshot
    effective = effective_subject(snapshot, principal, call.context.received_at)
    model = None if whose.model is None else card_of(access, whose.model, "model")
    rules = limits_for(snapshot, principal, effective, model, whose.purpose)
    return tuple(rule for rule in rules if whose.user is not None or rule.scope not in {"user", "key"})


async def _page(service: LimitService, rules: Sequence[LimitRule]) -> UsagePage:
    try:
        found = await service.usage(rules)
    except StoreUnavailable as error:
        raise _unavailable(error) from error
    views = [_window(bound, tally) for bound, tally in found]
    return UsagePage(data=views, total=len(views), degraded=service.degraded)


def _unavailable(error: StoreUnavailable) -> Unavailable:
    return Unavailable(
        "The counters cannot be read or changed right now.",
        code="limits_unavailable",
        hint="try again shortly",
        detail=str(error),
    )


def _window(bound: BoundRule, tally: Tally) -> WindowView:
    rule = bound.rule
    return WindowView(
        limit_id=rule.id,
        scope=rule.scope,
        counter=rule.scope_key,
        kind="rate" if bound.rate else "budget",
        window=_span(rule),
        starts_at=datetime.fromtimestamp(bound.window.start_ms / 1000, UTC),
        resets_at=datetime.fromtimestamp(bound.window.end_ms / 1000, UTC),
        quantities=[
            _quantity(dimension, limit, tally)
            for dimension in DIMENSIONS
            if (limit := getattr(rule, dimension.name)) is not None
        ],
        currency=rule.currency if rule.cost_micro is not None else None,
    )


def _quantity(dimension: Dimension, limit: int, tally: Tally) -> QuantityView:
    used, held = tally.used(dimension), tally.held(dimension)
    return QuantityView(
        quantity=dimension.name, limit=limit, used=used, held=held, remaining=max(0, limit - used - held)
    )


def _written(access: AccessService) -> list[tuple[str, dict[str, str], LimitRule]]:
    """Each limit of the document with what it counts."""
    described = {limit.id: limit for limit in access.snapshot.document.limits}
    written = []
    for compiled in access.snapshot.limits:
        rule = LimitRule(scope=compiled.kind, scope_key="", **compiled.quantities)
        limit = described[rule.id]
        scope = limit.scope.model_dump(mode="json", exclude_none=True)
        written.append((limit.description, {name: str(value) for name, value in scope.items()}, rule))
    return written


def _budget(written: tuple[str, dict[str, str], LimitRule]) -> BudgetView:
    description, scope, rule = written
    limits = {dimension.name: getattr(rule, dimension.name) for dimension in DIMENSIONS}
    return BudgetView(
        id=rule.id,
        description=description,
        scope=scope,
        kind="rate" if is_rate(rule) else "budget",
        window=_span(rule),
        tz=rule.tz,
        quantities={name: limit for name, limit in limits.items() if limit is not None},
        currency=rule.currency,
        warn_at=list(rule.warn_at),
        on_store_error=rule.on_store_error,
    )


def _span(rule: LimitRule) -> str:
    return f"{rule.window_s}s" if rule.window_s is not None else rule.window


def _used(page: UsagePage) -> list[dict[str, object]]:
    return [
        {"limit": view.limit_id, "counter": view.counter, **{q.quantity: q.used for q in view.quantities}}
        for view in page.data
    ]


def _target(whose: Whose) -> str:
    parts = (("user", whose.user), ("department", whose.department), ("role", ",".join(whose.roles)))
    return "/".join(f"{name}:{value}" for name, value in parts if value) or "tenant"
