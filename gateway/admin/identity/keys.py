"""`/admin/v1/service-accounts` and their keys. Permissions `identity.read` and `identity.write`.

Parses and renders; `gateway.identity.accounts` decides and writes. Every change and every refused change is an audit
event; a key's text is in the answer that makes it, once, and in no event.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Path, Request, Response

from gateway.admin.bodies import json_body, read_model
from gateway.admin.guard import AdminCall, PermissionGuard
from gateway.admin.identity.calls import READ, WRITE, Cursor, Limit, caller_of, row_before
from gateway.admin.identity.views import (
    AccountPage,
    AccountPatch,
    AccountView,
    IssuedKeyView,
    KeyPage,
    KeyView,
    NewAccount,
    NewKeyBody,
    RotateBody,
    RotatedKeyView,
    account_view,
    issued_view,
    key_view,
)
from gateway.admin.recording import Event, IdempotencyKey, before_after, changing, reading
from gateway.errors import PreconditionFailed, PreconditionRequired
from gateway.identity.accounts import AccountChange, AccountService, NewKey, etag_of
from gateway.identity.api_keys import ServiceAccount
from gateway.storage.pagination import page_of

KeyId = Annotated[str, Path(pattern=r"^[0-9a-z]{16}$")]
IfMatch = Annotated[str | None, Header(alias="If-Match", max_length=64)]


def routes(service: AccountService, guard: PermissionGuard) -> APIRouter:
    """Service accounts and keys, to be included in the admin application."""
    router = APIRouter(prefix="/admin/v1/service-accounts", tags=["service accounts"])
    may_read, may_write = Depends(guard.require(READ)), Depends(guard.require(WRITE))

    @router.post(
        "",
        status_code=201,
        summary="Make a service account",
        response_model=AccountView,
        openapi_extra=json_body(NewAccount),
    )
    async def create_account(
        request: Request, response: Response, key: IdempotencyKey = None, call: AdminCall = may_write
    ) -> AccountView:
        async with changing(guard, call, "service-accounts", status=201) as event:
            body = await read_model(request, NewAccount)
            asked = AccountChange(frozenset(body.roles), _models(body.models), body.clearance, disabled=False)
            account = await service.create(caller_of(call, key), body.name, asked)
            view = account_view(account)
            event.target, event.after_etag = f"service-accounts/{account.id}", etag_of(account)
            event.diff = before_after(None, view)
        response.headers["etag"] = etag_of(account)
        return view

    @router.get("", summary="The tenant's service accounts, newest first", response_model=AccountPage)
    async def list_accounts(cursor: Cursor = None, limit: Limit = 50, call: AdminCall = may_read) -> AccountPage:
        async with reading(guard, call, "service-accounts"):
            found, total = await service.accounts(caller_of(call), before=row_before(cursor), limit=limit + 1)
        page = page_of(found, limit, lambda account: UUID(account.id).bytes)
        return AccountPage(data=[account_view(account) for account in page.rows], total=total, **page.end)

    @router.get("/{account_id}", summary="One service account", response_model=AccountView)
    async def get_account(account_id: UUID, response: Response, call: AdminCall = may_read) -> AccountView:
        async with reading(guard, call, f"service-accounts/{account_id}"):
            account = await service.account(caller_of(call), account_id)
        response.headers["etag"] = etag_of(account)
        return account_view(account)

    @router.patch(
        "/{account_id}",
        summary="Change a service account's rights, or disable it",
        response_model=AccountView,
        openapi_extra=json_body(AccountPatch),
    )
    async def change_account(
        account_id: UUID, request: Request, response: Response, if_match: IfMatch = None, call: AdminCall = may_write
    ) -> AccountView:
        """Needs `If-Match`. What the account's keys have running and may run no more is stopped."""
        who = caller_of(call)
        async with changing(guard, call, f"service-accounts/{account_id}") as event:
            body = await read_model(request, AccountPatch)
            present = await service.account(who, account_id)
            before, after = await service.change(
                who, account_id, _merged(present, body), expected_version=_expected(if_match, present)
            )
            event.before_etag, event.after_etag = etag_of(before), etag_of(after)
            event.diff = before_after(account_view(before), account_view(after))
        response.headers["etag"] = etag_of(after)
        return account_view(after)

    @router.post(
        "/{account_id}/keys",
        status_code=201,
        summary="Make an API key",
        response_model=IssuedKeyView,
        openapi_extra=json_body(NewKeyBody),
    )
    async def create_key(
        account_id: UUID, request: Request, key: IdempotencyKey = None, call: AdminCall = may_write
    ) -> IssuedKeyView:
        """The key's text is shown in this answer only; a replay of the request shows it no more."""
        async with changing(guard, call, f"service-accounts/{account_id}/keys", status=201) as event:
            body = await read_model(request, NewKeyBody)
            roles = None if body.roles is None else frozenset(body.roles)
            asked = NewKey(body.name, roles, _models(body.models), timedelta(days=body.expires_in_days))
            view = issued_view(await service.issue(caller_of(call, key), account_id, asked))
            _tell(event, view, None)
        return view

    @router.get("/{account_id}/keys", summary="An account's keys, newest first", response_model=KeyPage)
    async def list_keys(
        account_id: UUID, cursor: Cursor = None, limit: Limit = 50, call: AdminCall = may_read
    ) -> KeyPage:
        async with reading(guard, call, f"service-accounts/{account_id}/keys"):
            found, total = await service.keys(caller_of(call), account_id, before=row_before(cursor), limit=limit + 1)
        page = page_of(found, limit, lambda row: row[0].bytes)
        return KeyPage(data=[key_view(record) for _, record in page.rows], total=total, **page.end)

    @router.get("/{account_id}/keys/{key_id}", summary="One API key", response_model=KeyView)
    async def get_key(account_id: UUID, key_id: KeyId, call: AdminCall = may_read) -> KeyView:
        async with reading(guard, call, f"service-accounts/{account_id}/keys/{key_id}"):
            record = await service.key(caller_of(call), account_id, key_id)
        return key_view(record)

    @router.post(
        "/{account_id}/keys/{key_id}:rotate",
        status_code=201,
        summary="Replace an API key",
        response_model=RotatedKeyView,
        openapi_extra=json_body(RotateBody),
    )
    async def rotate_key(
        account_id: UUID,
        key_id: KeyId,
        request: Request,
        key: IdempotencyKey = None,
        call: AdminCall = may_write,
    ) -> RotatedKeyView:
        """A new key with the same rights; the old one stays valid for the overlap. 409 `key_not_active`."""
        async with changing(guard, call, f"service-accounts/{account_id}/keys/{key_id}", status=201) as event:
            body = await read_model(request, RotateBody)
            old, issued = await service.rotate(
                caller_of(call, key),
                account_id,
                key_id,
                lifetime=timedelta(days=body.expires_in_days),
                overlap=timedelta(seconds=body.overlap_seconds),
            )
            view = issued_view(issued)
            _tell(event, view, key_view(old))
        return RotatedKeyView(**view.model_dump(), replaces=key_view(old))

    @router.delete("/{account_id}/keys/{key_id}", summary="Revoke an API key", response_model=KeyView)
    async def revoke_key(account_id: UUID, key_id: KeyId, call: AdminCall = may_write) -> KeyView:
        """At once here, within 5 s everywhere; what the key has running is stopped. Idempotent."""
        async with changing(guard, call, f"service-accounts/{account_id}/keys/{key_id}") as event:
            view = key_view(await service.revoke_key(caller_of(call), account_id, key_id))
            _tell(event, view, None)
        return view

    return router


def _tell(event: Event, after: KeyView, before: KeyView | None) -> None:
    event.target = f"service-accounts/{after.account_id}/keys/{after.id}"
    event.diff = before_after(before, after)


def _models(models: list[str] | None) -> tuple[str, ...] | None:
    return None if models is None else tuple(dict.fromkeys(models))


def _merged(present: ServiceAccount, body: AccountPatch) -> AccountChange:
    sent = body.model_fields_set
    return AccountChange(
        roles=frozenset(body.roles) if body.roles is not None else present.roles,
        models=_models(body.models) if "models" in sent else present.models,
        clearance=body.clearance if "clearance" in sent else present.clearance,
        disabled=body.disabled if body.disabled is not None else present.disabled,
    )


def _expected(if_match: str | None, present: ServiceAccount) -> int:
    if if_match is None or if_match.strip() == "*":
        raise PreconditionRequired("`If-Match` must name the version that you changed.", hint="send the account's ETag")
    if if_match.strip() != etag_of(present):
        raise PreconditionFailed(
            f"The service account is at version {present.version}.",
            hint="read it again, reapply your change and send its ETag",
            headers={"ETag": etag_of(present)},
        )
    return present.version
