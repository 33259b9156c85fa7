"""`policies/proposals`: changes that wait for a second person. Deciding needs `policy.approve`."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse

from gateway.access.document.diff import differences
from gateway.access.history.editor import PolicyEditor, Written
from gateway.access.history.service import AccessService
from gateway.admin.guard import AdminCall, PermissionGuard
from gateway.admin.policies.changes import parse_stored, recorded
from gateway.admin.policies.views import ProposalPage, ProposalView, change_view, proposal_view
from gateway.admin.reach import reach_of
from gateway.admin.recording import changing
from gateway.errors import NotFound


def routes(service: AccessService, editor: PolicyEditor, guard: PermissionGuard) -> APIRouter:
    router = APIRouter()
    may_read = Depends(guard.require("policy.read"))
    may_approve = Depends(guard.require("policy.approve"))

    @router.get(
        "/policies/proposals",
        summary="Proposed changes, newest first",
        response_model=ProposalPage,
    )
    async def proposals(
        state: Literal["pending", "approved", "rejected"] | None = None,
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
        call: AdminCall = may_read,
    ) -> ProposalPage:
        reach = reach_of(service, call)
        found = await editor.repository.proposals(state=state, limit=limit)
        return ProposalPage(data=[proposal_view(proposal, reach) for proposal in found], total=len(found))

    @router.get("/policies/proposals/{proposal_id}", summary="One proposal with its changes")
    async def proposal(proposal_id: UUID, call: AdminCall = may_read) -> ProposalView:
        found = await editor.repository.proposal(proposal_id)
        if found is None:
            raise NotFound("There is no such proposal.", code="proposal_not_found")
        base = await editor.version(found.base_version)
        changes = differences(parse_stored(base.content), parse_stored(found.content))
        return proposal_view(found, reach_of(service, call), [change_view(change) for change in changes])

    @router.post("/policies/proposals/{proposal_id}:approve", summary="Put a proposal in force, as a second person")
    async def approve(proposal_id: UUID, request: Request, call: AdminCall = may_approve) -> ProposalView:
        async def work() -> Written:
            return await editor.approve(proposal_id, call.principal, call.context)

        written = await recorded(guard, call, request, f"policies/proposals/{proposal_id}:approve", work)
        if written.proposal is None:
            raise NotFound("There is no such proposal.", code="proposal_not_found")
        return proposal_view(written.proposal, reach_of(service, call))

    @router.post(
        "/policies/proposals/{proposal_id}:reject", summary="Turn a proposal down", response_model=ProposalView
    )
    async def reject(proposal_id: UUID, call: AdminCall = may_approve) -> Response:
        async with changing(guard, call, f"policies/proposals/{proposal_id}:reject"):
            rejected = await editor.reject(proposal_id, call.principal)
        return JSONResponse(proposal_view(rejected, reach_of(service, call)).model_dump(mode="json"))

    return router
