"""`/v1/responses/{id}`: reading, listing the input of and deleting what is kept. For its owner alone, and on record."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request

from gateway.api.responses.answers import DeletedResponse, ItemList, ResponseView
from gateway.api.responses.kept import response_key
from gateway.api.responses.recording import recorded
from gateway.conversations.sealing import Owner
from gateway.conversations.store import Kept, ResponseStore
from gateway.errors import InvalidRequest, NotFound
from gateway.flow.ports import AuditLog
from gateway.flow.values import Principal

READ, DELETE = "responses.read", "responses.delete"
Identify = Callable[[Request], Awaitable[Principal]]


def routes(identify: Callable[[str], Identify], store: ResponseStore, audit: AuditLog) -> APIRouter:
    """`identify` verifies the caller and puts refusals on record."""
    router = APIRouter(tags=["responses"])
    reader, deleter = identify(READ), identify(DELETE)

    def on_record(
        request: Request, caller: Principal, response_id: str, action: str
    ) -> AbstractAsyncContextManager[UUID]:
        key = response_key(response_id)
        return recorded(audit, request, caller, action, "responses", key, response_name, _absent)

    async def found(request: Request, response_id: str) -> Kept:
        caller = await reader(request)
        async with on_record(request, caller, response_id, READ) as key:
            kept = await store.get(Owner.of(caller), key)
            if kept is None or "id" not in kept.response:
                raise _absent()
            return kept

    @router.get(
        "/v1/responses/{response_id}",
        summary="A response that is kept for you",
        responses={200: {"model": ResponseView}},
    )
    async def retrieve(request: Request, response_id: str, stream: bool = False) -> dict[str, Any]:
        if stream:
            raise InvalidRequest(
                "A kept response is not streamed again.",
                code="unsupported_parameter",
                param="stream",
                hint="read it as a whole",
            )
        return (await found(request, response_id)).response

    @router.delete(
        "/v1/responses/{response_id}",
        summary="Delete a response that is kept for you",
        responses={200: {"model": DeletedResponse}},
    )
    async def remove(request: Request, response_id: str) -> dict[str, Any]:
        caller = await deleter(request)

        async with on_record(request, caller, response_id, DELETE) as key:
            if not await store.delete(Owner.of(caller), key):
                raise _absent()
        return {"id": response_id, "object": "response", "deleted": True}

    @router.get(
        "/v1/responses/{response_id}/input_items",
        summary="The input of a response that is kept for you",
        responses={200: {"model": ItemList}},
    )
    async def list_input(
        request: Request,
        response_id: str,
        after: Annotated[str | None, Query(max_length=256)] = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> dict[str, Any]:
        items = (await found(request, response_id)).input
        return item_page(items if order == "asc" else items[::-1], after, limit)

    return router


def response_name(key: UUID) -> str:
    return f"resp_{key.hex}"


def item_page(items: list[dict[str, Any]], after: str | None, limit: int) -> dict[str, Any]:
    """Raises `InvalidRequest` for an `after` that is none of the items."""
    start = 0
    if after is not None:
        start = next((at + 1 for at, item in enumerate(items) if item["id"] == after), -1)
        if start < 0:
            raise InvalidRequest("`after` is the id of none of the items.", code="invalid_value", param="after")
    data = items[start : start + limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": start + limit < len(items),
    }


def _absent() -> NotFound:
    return NotFound(
        "There is no such response.",
        code="response_not_found",
        param="response_id",
        hint="it was not kept, its time is over, or it belongs to somebody else",
    )
