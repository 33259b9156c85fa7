"""`/admin/v1/revocations`. Permissions `identity.read` and `identity.write`.

Parses and renders; `gateway.identity.revoking` decides and writes. In force on this replica when the answer leaves,
everywhere within 5 s, and the running answers of whom it concerns are stopped.
"""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request

from gateway.admin.bodies import json_body, read_model
from gateway.admin.guard import AdminCall, PermissionGuard
from gateway.admin.identity.calls import READ, WRITE, Cursor, Limit, caller_of, row_before
from gateway.admin.identity.views import NewRevocation, RevocationPage, RevocationView, revocation_view
from gateway.admin.recording import IdempotencyKey, before_after, changing, reading
from gateway.identity.revoking import RevocationRequest, RevocationService
from gateway.storage.pagination import page_of


def routes(service: RevocationService, guard: PermissionGuard) -> APIRouter:
    """Revocations, to be included in the admin application."""
    router = APIRouter(prefix="/admin/v1/revocations", tags=["revocations"])
    may_read, may_write = Depends(guard.require(READ)), Depends(guard.require(WRITE))

    @router.post(
        "",
        status_code=201,
        summary="Revoke a credential, a subject, or everything issued before a moment",
        response_model=RevocationView,
        openapi_extra=json_body(NewRevocation),
    )
    async def revoke(request: Request, key: IdempotencyKey = None, call: AdminCall = may_write) -> RevocationView:
        """409 `would_lock_out` for oneself."""
        async with changing(guard, call, "revocations", status=201) as event:
            body = await read_model(request, NewRevocation)
            view = revocation_view(await service.revoke(caller_of(call, key), RevocationRequest(**body.model_dump())))
            event.target, event.reason = f"revocations/{view.id}", view.reason
            event.diff = before_after(None, view)
        return view

    @router.get("", summary="The tenant's revocations, newest first", response_model=RevocationPage)
    async def list_revocations(
        cursor: Cursor = None,
        limit: Limit = 50,
        active: Annotated[bool, Query(description="false: lifted and expired ones as well")] = True,
        call: AdminCall = may_read,
    ) -> RevocationPage:
        async with reading(guard, call, "revocations"):
            found, total = await service.page(
                caller_of(call), before=row_before(cursor), limit=limit + 1, active=active
            )
        page = page_of(found, limit, lambda entry: UUID(entry.id).bytes)
        return RevocationPage(data=[revocation_view(entry) for entry in page.rows], total=total, **page.end)

    @router.get("/{revocation_id}", summary="One revocation", response_model=RevocationView)
    async def get_revocation(revocation_id: UUID, call: AdminCall = may_read) -> RevocationView:
        async with reading(guard, call, f"revocations/{revocation_id}"):
            entry = await service.get(caller_of(call), revocation_id)
        return revocation_view(entry)

    @router.delete("/{revocation_id}", summary="Lift a revocation", response_model=RevocationView)
    async def lift(revocation_id: UUID, call: AdminCall = may_write) -> RevocationView:
        """Idempotent; the entry stays for the record. What was stopped stays stopped."""
        async with changing(guard, call, f"revocations/{revocation_id}") as event:
            before = revocation_view(await service.get(caller_of(call), revocation_id))
            after = revocation_view(await service.lift(caller_of(call), revocation_id))
            event.diff = before_after(before, after)
        return after

    return router
