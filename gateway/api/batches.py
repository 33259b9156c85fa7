"""`/v1/batches`: many requests in one file, answered within a day under the caller's own rights and limits.

Behind the action `batches.use`; each line is then decided like any request, when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field, ValidationError
from starlette.types import ASGIApp

from gateway.admin.bodies import json_body
from gateway.admin.guard import AdminCall, PermissionGuard
from gateway.admin.recording import changing, reading
from gateway.api.batch_views import BatchPage, BatchView, batch_page, batch_view
from gateway.api.http.body import BodyReader, ClientGone
from gateway.api.http.errors import refusal_of
from gateway.api.structured import Strict
from gateway.batches.batch_store import BatchStore, NewBatch
from gateway.batches.values import Origin, Owner
from gateway.errors import InvalidRequest

RIGHT = "batches.use"
After = Annotated[str | None, Query(max_length=64, pattern=r"^[a-z]+[-_][0-9a-f]+$")]


class OutputExpiry(Strict):
    anchor: Literal["created_at"]
    """Of the output file, which is made when the batch ends."""
    seconds: Annotated[int, Field(ge=3600, le=2_592_000)]


class BatchBody(Strict):
    input_file_id: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
    endpoint: Annotated[str, Field(min_length=1, max_length=64)]
    completion_window: Literal["24h"]
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
            Field(max_length=16, fail_fast=True),
        ]
        | None
    ) = None
    output_expires_after: OutputExpiry | None = None


def routes(
    batches: BatchStore,
    reader: BodyReader,
    endpoints: Mapping[str, ASGIApp],
    guard: PermissionGuard,
    wake: Callable[[], None],
) -> APIRouter:
    """`wake` tells the worker of this node that there is something to do."""
    router = APIRouter(prefix="/v1/batches", tags=["batches"])
    allowed = Depends(guard.require(RIGHT))

    @router.post("", summary="Start a batch", response_model=BatchView, openapi_extra=json_body(BatchBody))
    async def create(request: Request, call: AdminCall = allowed) -> BatchView:
        async with changing(guard, call, "batches") as event:
            body = await _body(request, reader)
            if body.endpoint not in endpoints:
                known = ", ".join(f"`{path}`" for path in sorted(endpoints))
                raise InvalidRequest(f"`endpoint` must be one of {known}.", code="invalid_value", param="endpoint")
            keep = body.output_expires_after
            new = NewBatch(
                body.input_file_id,
                body.endpoint,
                body.metadata or {},
                None if keep is None else timedelta(seconds=keep.seconds),
            )
            made = await batches.create(call.principal, new, _origin(call))
            event.target = f"batches/{made.id}"
            event.diff = {"input_file_id": made.input_file_id, "endpoint": made.endpoint}
        wake()
        return batch_view(made)

    @router.get("", summary="Your batches, newest first", response_model=BatchPage)
    async def list_batches(
        after: After = None, limit: Annotated[int, Query(ge=1, le=100)] = 20, call: AdminCall = allowed
    ) -> BatchPage:
        async with reading(guard, call, "batches"):
            found = await batches.page(Owner.of(call.principal), after=after, limit=limit + 1)
        return batch_page(found, limit)

    @router.get("/{batch_id}", summary="One of your batches", response_model=BatchView)
    async def get_batch(batch_id: str, call: AdminCall = allowed) -> BatchView:
        async with reading(guard, call, f"batches/{batch_id[:64]}"):
            return batch_view(await batches.get(Owner.of(call.principal), batch_id))

    @router.post("/{batch_id}/cancel", summary="Stop a batch; what has run is kept", response_model=BatchView)
    async def cancel(batch_id: str, call: AdminCall = allowed) -> BatchView:
        async with changing(guard, call, f"batches/{batch_id[:64]}/cancel"):
            stopped = await batches.cancel(Owner.of(call.principal), batch_id)
        wake()
        return batch_view(stopped)

    return router


async def _body(request: Request, reader: BodyReader) -> BatchBody:
    try:
        raw = await reader.read(request.scope["headers"], request.receive)
    except ClientGone:
        raise InvalidRequest("The client hung up while the body was being read.", code="client_disconnect") from None
    return await reader.parsed(raw, _validated)


def _validated(value: Any) -> BatchBody:
    try:
        return BatchBody.model_validate(value)
    except ValidationError as error:
        raise refusal_of(error) from None


def _origin(call: AdminCall) -> Origin:
    client, context = call.context.client, call.context
    return Origin(client.ip, client.user_agent, context.data_class, context.purpose)
