"""`/admin/v1/audit/requests/{request_id}/content`: what was asked and answered. Permission `content.read`.

Needs a reason. Reader, reason and request are on record before anything is shown; only the reader's own tenant is seen.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from gateway.admin.guard import AdminCall, PermissionGuard
from gateway.admin.recording import reading
from gateway.audit.content_reader import ContentReader, RecordedText
from gateway.errors import InvalidRequest, NotFound

PERMISSION = "content.read"
SHORTEST_REASON, LONGEST_REASON = 8, 500
Reason = Annotated[
    str | None,
    Query(
        description="required: why you need to read it, in 8 to 500 characters; kept in the audit record",
        json_schema_extra={"minLength": SHORTEST_REASON, "maxLength": LONGEST_REASON},
    ),
]
"""Judged in the route and not by the framework, so that an attempt without a reason is on record too."""


class ContentView(BaseModel):
    """A prompt has one of `messages`, `prompt` and `inputs`; an answer has `choices`. Messages and tools are those of
    the chat API."""

    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    prompt: str | list[int | str | list[int]] | None = None
    inputs: list[str | list[int]] | None = None
    choices: list[str | dict[str, Any]] | None = Field(None, description="a message where it is more than text")
    truncated: bool = Field(False, description="true when an answer was too large to be stored whole")


class RecordedTextView(BaseModel):
    kind: Literal["prompt", "response"]
    event_id: UUID = Field(description="the audit record that commits to it")
    state: Literal["readable", "erased", "key_missing", "damaged"]
    key_id: str
    sha256: str = Field(description="of the encrypted envelope, as the hash chain has it")
    created_at: datetime
    expires_at: datetime | None
    content: ContentView | None


class RequestContent(BaseModel):
    object: Literal["audit.content"] = "audit.content"
    request_id: UUID
    data: list[RecordedTextView] = Field(description="empty where policy asked for no content")
    content_level: str | None = Field(description="the `contentLogging` that held for the request")
    note: str | None = Field(None, description="why `data` is empty")


def routes(reader: ContentReader, guard: PermissionGuard) -> APIRouter:
    router = APIRouter(prefix="/admin/v1/audit", tags=["audit"])
    permitted = Depends(guard.require(PERMISSION))

    @router.get(
        "/requests/{request_id}/content",
        summary="What was asked and answered in one request",
        response_model=RequestContent,
        responses=_REFUSALS,
    )
    async def content(request_id: UUID, reason: Reason = None, call: AdminCall = permitted) -> RequestContent:
        """The reading is an `access` event with your name, your reason and the request."""
        why = (reason or "").strip()
        async with reading(guard, call, f"audit/requests/{request_id}/content", reason=why[:LONGEST_REASON]) as event:
            if sum(map(str.isprintable, why)) < SHORTEST_REASON or len(why) > LONGEST_REASON:
                raise _no_reason(missing=reason is None)
            found = await reader.of_request(request_id, tenant=call.principal.tenant)
            if found is None:
                raise NotFound("There is no such request.", param="request_id")
            event.diff = {"read": [f"{text.kind}:{text.state}" for text in found.texts]}
        level = found.content_level
        return RequestContent(
            request_id=request_id,
            data=[_view(text) for text in found.texts],
            content_level=level,
            note=None if found.texts else f"not recorded by policy: `contentLogging` was `{level}`",
        )

    return router


def _view(text: RecordedText) -> RecordedTextView:
    return RecordedTextView.model_validate(asdict(text))


def _no_reason(*, missing: bool) -> InvalidRequest:
    refused = InvalidRequest(
        f"A reason of {SHORTEST_REASON} to {LONGEST_REASON} characters is needed to read content.",
        code="missing_required_parameter" if missing else "invalid_value",
        param="reason",
        hint="say why in a few words",
    )
    refused.status = 422
    return refused


_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    for status, description in (
        (404, "`not_found`: your tenant has no such request"),
        (422, "`reason` is missing, too short or too long"),
    )
}
