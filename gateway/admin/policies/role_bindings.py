"""`/admin/v1/role-bindings`: roles given by name. A binding is part of the policy document, so every change of one is
a new policy version under the same guards: ETag, no granting beyond own rights, lock-out, second person, audit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import Field

from gateway.access.document.model import RoleBinding
from gateway.access.history.edit_section import replace_section
from gateway.access.history.editor import PolicyEditor, Written
from gateway.access.history.service import AccessService
from gateway.admin.bodies import AdminBody, Page, json_body, read_model
from gateway.admin.guard import AdminCall, PermissionGuard
from gateway.admin.policies.changes import CHANGE_HEADERS, CHANGE_REFUSALS, change_from, parse_stored, recorded
from gateway.admin.policies.responses import write_response
from gateway.admin.policies.views import WriteView
from gateway.admin.reach import reach_of
from gateway.errors import Conflict, NotFound
from gateway.storage.pagination import decode_cursor, page_of

_log = logging.getLogger("esclusa.policy")
BindingId = Annotated[str, Path(max_length=128)]


class BindingBody(AdminBody):
    """A role binding. `principals` are `<issuer>#<subject>`; a break-glass binding must expire."""

    roles: list[Annotated[str, Field(max_length=128)]] = Field(min_length=1, max_length=100, fail_fast=True)
    principals: list[Annotated[str, Field(max_length=1024)]] = Field(min_length=1, max_length=1000, fail_fast=True)
    expires: str | None = Field(None, max_length=64, examples=["2026-12-31T23:59:00Z"])
    break_glass: bool = False
    reason: str = Field("", max_length=2000)


class NewBinding(BindingBody):
    id: str = Field(max_length=128)


class BindingView(NewBinding):
    object: Literal["role_binding"] = "role_binding"


class BindingPage(Page):
    data: list[BindingView]
    etag: str = Field(description="ETag of the policy that holds the bindings; send it as `If-Match`")


def routes(service: AccessService, editor: PolicyEditor, guard: PermissionGuard) -> APIRouter:
    router = APIRouter(tags=["role bindings"])
    may_read = Depends(guard.require("policy.read"))
    may_write = Depends(guard.require("policy.write"))

    @router.get("/role-bindings", summary="Roles given by name", response_model=BindingPage, dependencies=[may_read])
    async def bindings(
        response: Response,
        role: Annotated[str | None, Query(max_length=128)] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 200,
        cursor: Annotated[str | None, Query(max_length=1024)] = None,
    ) -> BindingPage:
        stored = await editor.current()
        every = sorted(parse_stored(stored.content).role_bindings, key=lambda binding: binding.id)
        wanted = [binding for binding in every if role is None or role in binding.roles]
        after = decode_cursor(cursor, bytes.decode)
        rest = [binding for binding in wanted if after is None or binding.id > after]
        page = page_of(rest, limit, lambda binding: binding.id.encode())
        response.headers["etag"] = stored.etag
        return BindingPage(
            data=[_view(binding) for binding in page.rows], total=len(wanted), etag=stored.etag, **page.end
        )

    @router.post(
        "/role-bindings",
        summary="Give roles to people by name",
        response_model=WriteView,
        responses=CHANGE_REFUSALS,
        openapi_extra={**json_body(NewBinding), **CHANGE_HEADERS},
    )
    async def create(request: Request, call: AdminCall = may_write) -> Response:
        body = await read_model(request, NewBinding)

        def add(found: tuple[RoleBinding, ...]) -> list[dict[str, object]]:
            if any(binding.id == body.id for binding in found):
                raise Conflict(f"There is a role binding `{body.id}` already.", code="already_exists", param="id")
            return [*map(_data, found), _body_data(body.id, body)]

        return await _changed(request, call, f"role-bindings/{body.id}", add)

    @router.put(
        "/role-bindings/{binding_id}",
        summary="Replace a role binding",
        response_model=WriteView,
        responses=CHANGE_REFUSALS,
        openapi_extra={**json_body(BindingBody), **CHANGE_HEADERS},
    )
    async def update(binding_id: BindingId, request: Request, call: AdminCall = may_write) -> Response:
        body = await read_model(request, BindingBody)

        def swap(found: tuple[RoleBinding, ...]) -> list[dict[str, object]]:
            _demand_known(found, binding_id)
            return [_body_data(binding_id, body) if b.id == binding_id else _data(b) for b in found]

        return await _changed(request, call, f"role-bindings/{binding_id}", swap)

    @router.delete(
        "/role-bindings/{binding_id}",
        summary="Take roles back",
        response_model=WriteView,
        responses=CHANGE_REFUSALS,
        openapi_extra=CHANGE_HEADERS,
    )
    async def delete(binding_id: BindingId, request: Request, call: AdminCall = may_write) -> Response:
        def drop(found: tuple[RoleBinding, ...]) -> list[dict[str, object]]:
            _demand_known(found, binding_id)
            return [_data(binding) for binding in found if binding.id != binding_id]

        return await _changed(request, call, f"role-bindings/{binding_id}", drop)

    async def _changed(
        request: Request,
        call: AdminCall,
        target: str,
        edit: Callable[[tuple[RoleBinding, ...]], list[dict[str, object]]],
    ) -> Response:
        async def work() -> Written:
            change = replace(change_from(request, call), origin="binding")
            stored = await editor.current()
            items = edit(parse_stored(stored.content).role_bindings)
            text = replace_section(stored.content.source, stored.content.syntax, "roleBindings", items)
            written = await editor.change(text, stored.content.syntax, change)
            if any(item.get("breakGlass") for item in items):
                _log.warning("a break-glass role binding is in the policy: %s", target)
            return written

        return write_response(await recorded(guard, call, request, target, work), reach_of(service, call))

    return router


def _demand_known(found: tuple[RoleBinding, ...], binding_id: str) -> None:
    if all(binding.id != binding_id for binding in found):
        raise NotFound("There is no such role binding.", code="binding_not_found")


def _data(binding: RoleBinding) -> dict[str, object]:
    data: dict[str, object] = binding.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return data


def _body_data(binding_id: str, body: BindingBody) -> dict[str, object]:
    data: dict[str, object] = {"id": binding_id, "roles": body.roles, "principals": body.principals}
    if body.expires is not None:
        data["expires"] = body.expires
    if body.break_glass:
        data["breakGlass"] = True
    if body.reason:
        data["reason"] = body.reason
    return data


def _view(binding: RoleBinding) -> BindingView:
    return BindingView(
        id=binding.id,
        roles=list(binding.roles),
        principals=list(binding.principals),
        expires=binding.expires,
        break_glass=binding.break_glass,
        reason=binding.reason,
    )
