"""`/admin/v1/policies`: the policy in force, its versions, replacing and restoring it.

Parses and renders; `gateway.access.history.editor` holds the steps of a change. Reading needs `policy.read`, writing
`policy.write`. Checks, proposals and role bindings live in the modules beside this one and are included here.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import JSONResponse

from gateway.access.document.diff import differences, text_diff
from gateway.access.document.model import PolicySet
from gateway.access.history.editor import PolicyEditor, Written
from gateway.access.history.service import AccessService
from gateway.admin.bodies import YAML_TYPES, document_body, read_document
from gateway.admin.guard import AdminCall, PermissionGuard
from gateway.admin.policies import checks as policy_checks
from gateway.admin.policies import proposals as policy_proposals
from gateway.admin.policies import role_bindings
from gateway.admin.policies.changes import (
    CHANGE_HEADERS,
    CHANGE_REFUSALS,
    change_from,
    parse_stored,
    recorded,
)
from gateway.admin.policies.responses import write_response
from gateway.admin.policies.views import (
    DiffView,
    VersionDetail,
    VersionPage,
    WriteView,
    change_view,
    document_view,
    version_detail,
    version_view,
)
from gateway.admin.reach import reach_of
from gateway.flow.ports import PastDecisions
from gateway.storage.pagination import decode_cursor, page_of

PREFIX = "/admin/v1"
WAITS: dict[int | str, dict[str, Any]] = {202: {"model": WriteView, "description": "waits for a second person"}}
VersionNumber = Annotated[int, Path(ge=1, le=2**31 - 1)]


def routes(
    service: AccessService,
    editor: PolicyEditor,
    guard: PermissionGuard,
    *,
    past: PastDecisions | None = None,
) -> APIRouter:
    """All policy routes. `past` reads recorded decisions for `policies:simulate`; without it that route answers 503."""
    router = APIRouter(prefix=PREFIX, tags=["policies"])
    may_read = Depends(guard.require("policy.read"))
    may_write = Depends(guard.require("policy.write"))

    @router.get(
        "/policies/current",
        summary="The policy in force, as JSON, or as written with `Accept: application/yaml`",
        responses={
            200: {"model": PolicySet, "content": {"application/yaml": {"schema": {"type": "string"}}}},
            304: {"description": "unchanged since the ETag in `If-None-Match`"},
        },
    )
    async def current(request: Request, call: AdminCall = may_read) -> Response:
        stored = await editor.current()
        headers = {"etag": stored.etag, "vary": "accept"}
        if request.headers.get("if-none-match") == stored.etag:
            return Response(status_code=304, headers=headers)
        wants_yaml = any(kind in request.headers.get("accept", "") for kind in YAML_TYPES)
        if wants_yaml and stored.content.syntax == "yaml":
            return Response(stored.content.source, media_type="application/yaml", headers=headers)
        return JSONResponse(
            document_view(parse_stored(stored.content), stored, reach_of(service, call)), headers=headers
        )

    @router.put(
        "/policies/current",
        summary="Replace the policy",
        response_model=WriteView,
        responses={**CHANGE_REFUSALS, **WAITS},
        openapi_extra={**document_body(), **CHANGE_HEADERS},
    )
    async def replace(request: Request, call: AdminCall = may_write) -> Response:
        async def work() -> Written:
            raw, syntax = await read_document(request)
            return await editor.change(raw, syntax, change_from(request, call))

        written = await recorded(guard, call, request, "policies/current", work)
        return write_response(written, reach_of(service, call))

    @router.get(
        "/policies/versions",
        summary="Versions, newest first",
        response_model=VersionPage,
    )
    async def versions(
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
        cursor: Annotated[str | None, Query(max_length=64)] = None,
        call: AdminCall = may_read,
    ) -> VersionPage:
        before = decode_cursor(cursor, _version)
        found, total = await editor.repository.page(before=before, limit=limit + 1)
        page, reach = page_of(found, limit, lambda stored: b"v%d" % stored.version), reach_of(service, call)
        return VersionPage(data=[version_view(stored, reach) for stored in page.rows], total=total, **page.end)

    @router.get(
        "/policies/versions/{number}",
        summary="One version with its text",
        response_model=VersionDetail,
    )
    async def version(number: VersionNumber, response: Response, call: AdminCall = may_read) -> VersionDetail:
        stored = await editor.version(number)
        response.headers["etag"] = stored.etag
        return version_detail(stored, reach_of(service, call))

    @router.get(
        "/policies/versions/{number}/diff/{other}",
        summary="What changed between two versions",
        response_model=DiffView,
        dependencies=[may_read],
    )
    async def diff(number: VersionNumber, other: VersionNumber) -> DiffView:
        before, after = await editor.version(number), await editor.version(other)
        changes = differences(parse_stored(before.content), parse_stored(after.content))
        return DiffView(
            from_version=number,
            to_version=other,
            changes=[change_view(change) for change in changes],
            text=text_diff(before.content.source, after.content.source, names=(f"v{number}", f"v{other}")),
        )

    @router.post(
        "/policies/versions/{number}:restore",
        summary="Make an old version the newest again",
        response_model=WriteView,
        responses={**CHANGE_REFUSALS, **WAITS},
        openapi_extra=CHANGE_HEADERS,
    )
    async def restore(number: VersionNumber, request: Request, call: AdminCall = may_write) -> Response:
        async def work() -> Written:
            return await editor.restore(number, change_from(request, call))

        written = await recorded(guard, call, request, f"policies/versions/{number}:restore", work)
        return write_response(written, reach_of(service, call))

    router.include_router(policy_checks.routes(service, editor, guard, past))
    router.include_router(policy_proposals.routes(service, editor, guard))
    router.include_router(role_bindings.routes(service, editor, guard))
    return router


def _version(position: bytes) -> int:
    if position[:1] != b"v" or not position[1:].isdigit() or len(position) > 11:
        raise ValueError
    return int(position[1:])
