"""Dry runs of a policy: `policies:validate` and `policies:simulate`. Nothing is written, nobody is refused here."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from gateway.access.decision.simulation import simulate
from gateway.access.document.diff import differences
from gateway.access.document.problems import PolicyInvalid
from gateway.access.history.editor import PolicyEditor
from gateway.access.history.service import AccessService
from gateway.admin.bodies import document_body, read_document
from gateway.admin.guard import AdminCall, PermissionGuard
from gateway.admin.policies.views import (
    ObjectionView,
    SimulationView,
    ValidationView,
    change_view,
    finding,
    simulation_view,
)
from gateway.admin.reach import holds, reach_of
from gateway.admin.recording import reading
from gateway.errors import Unavailable
from gateway.flow.ports import PastDecisions

MAX_FLIPS = 1000


def routes(
    service: AccessService, editor: PolicyEditor, guard: PermissionGuard, past: PastDecisions | None
) -> APIRouter:
    router = APIRouter()
    may_read = Depends(guard.require("policy.read"))

    @router.post(
        "/policies:validate",
        summary="Check a document: every error and warning with its place, and what it would change",
        response_model=ValidationView,
        openapi_extra=document_body(),
    )
    async def validate(request: Request, call: AdminCall = may_read) -> ValidationView:
        raw, syntax = await read_document(request)
        try:
            candidate = await editor.examine(raw, syntax)
        except PolicyInvalid as error:
            return ValidationView(valid=False, errors=[finding(problem) for problem in error.problems])
        in_force = service.snapshot
        objection = await editor.objection(in_force, candidate, call.principal, call.context)
        changes = differences(in_force.document, candidate.snapshot.document)
        return ValidationView(
            valid=True,
            sha256=candidate.snapshot.sha256,
            warnings=[finding(warning) for warning in candidate.warnings],
            changes=[change_view(change) for change in changes],
            objection=ObjectionView(code=objection.code, message=objection.message) if objection else None,
        )

    @router.post(
        "/policies:simulate",
        summary="Replay recorded decisions on a document and list those that would change",
        response_model=SimulationView,
        openapi_extra=document_body(),
    )
    async def simulate_document(
        request: Request,
        call: AdminCall = may_read,
        limit: Annotated[int, Query(ge=1, le=50_000, description="how many recorded decisions to replay")] = 5000,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> SimulationView:
        """Replays the decisions of the caller's tenant; those of all tenants with `tenants.all`."""
        async with reading(guard, call, "policies:simulate") as event:
            raw, syntax = await read_document(request)
            candidate = await editor.check(raw, syntax)
            if past is None:
                raise Unavailable("No audit trail is connected to replay.", code="audit_unavailable")
            reach = reach_of(service, call)
            records = await past.recent(since=since, until=until, limit=limit, tenants=reach.tenants)
            result = await asyncio.to_thread(simulate, candidate.snapshot, service.snapshot, records)
            event.target = f"policies:simulate?limit={limit}"
        return simulation_view(
            result,
            [finding(warning) for warning in candidate.warnings],
            limit=MAX_FLIPS,
            show_flips=holds(service, call, "audit.read"),
        )

    return router
