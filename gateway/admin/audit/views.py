"""The shapes of what the audit routes answer, for the description of the API; tests hold real answers against them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.bodies import AdminBody
from gateway.api.chat_messages import ChatMessage, messages_of
from gateway.api.tool_params import MAX_TOOLS, FunctionTool, tools_of
from gateway.errors import InvalidRequest
from gateway.flow.values import Message, ToolSpec


class EventView(BaseModel):
    """One audit event as it is listed. Personal values are null once they were erased."""

    model_config = ConfigDict(extra="forbid")

    ts: datetime
    event_id: UUID
    request_id: UUID
    phase: Literal["intent", "completion", "denied", "aggregated", "admin", "access", "system"]
    node_id: str
    ingested_at: datetime
    tenant: str
    issuer: str
    subject: str | None
    principal_type: str
    client_id: str | None
    department: str | None
    roles: list[str]
    credential_id: str | None
    route: str
    action: str | None
    target: str | None
    stream: bool | None
    model_requested: str | None
    model_resolved: str | None
    model_served: str | None
    decision: Literal["allow", "deny", "error"]
    deny_code: str | None
    policy_version: int | None
    rule_id: str | None
    route_reason: str | None
    http_status: int | None
    error_code: str | None
    finish_reason: str | None
    outcome: str | None
    tokens_in: int | None
    tokens_out: int | None
    tokens_cached: int | None
    cost_micro: int | None
    currency: str | None
    total_us: int | None
    ttft_us: int | None


class Presented(AdminBody):
    """A text, or messages of the chat API, that somebody says were asked or answered."""

    kind: Literal["prompt", "response"] = "prompt"
    text: str | None = Field(None, max_length=1_000_000)
    messages: list[ChatMessage] = Field(
        [], max_length=2048, fail_fast=True, description="a whole chat; of an answer, its choices in order"
    )
    tools: list[FunctionTool] = Field([], max_length=MAX_TOOLS, fail_fast=True, description="that the chat offered")

    def chat(self) -> tuple[tuple[Message, ...], tuple[ToolSpec, ...]]:
        """Raises `InvalidRequest` for what no chat could hold."""
        try:
            return messages_of(self.messages), tools_of(self.tools)
        except InvalidRequest as error:
            error.status = 422
            raise


class Comparison(BaseModel):
    object: Literal["audit.comparison"] = "audit.comparison"
    event_id: UUID
    kind: Literal["prompt", "response"]
    verdict: Literal["match", "no_match", "not_recorded", "erased"]


class RequestView(BaseModel):
    """One request that has ended, from its first and its last record."""

    model_config = ConfigDict(extra="forbid")

    began_at: datetime
    ended_at: datetime
    request_id: UUID
    tenant: str
    issuer: str
    subject: str | None
    principal_type: str
    client_id: str | None
    department: str | None
    roles: list[str]
    credential_id: str | None
    route: str
    action: str | None
    stream: bool | None
    model_requested: str | None
    model_resolved: str | None
    model_served: str | None
    decision: Literal["allow", "deny", "error"]
    deny_code: str | None
    policy_version: int | None
    rule_id: str | None
    route_reason: str | None
    http_status: int | None
    error_code: str | None
    finish_reason: str | None
    outcome: str | None
    tokens_in: int | None
    tokens_out: int | None
    tokens_cached: int | None
    cost_micro: int | None
    currency: str | None
    total_us: int | None
    ttft_us: int | None
    purpose: str | None
    data_class: str | None = Field(description="that was decided by: the caller's, else the policy's default")
    policy_reason: str | None
    policy_sha256: str | None
    content_level: str | None = Field(description="the policy's `contentLogging` for this request")
    intent_event_id: UUID | None
    event_id: UUID


class RequestPage(BaseModel):
    model_config = ConfigDict(extra="forbid")

    object: Literal["list"]
    data: list[RequestView]
    has_more: bool
    next_cursor: str | None
    watermark: datetime | None
    ingest_lag_s: float


class EventPage(BaseModel):
    model_config = ConfigDict(extra="forbid")

    object: Literal["list"]
    data: list[EventView]
    has_more: bool
    next_cursor: str | None
    watermark: datetime | None = Field(description="every event of this node before it is within reach")
    ingest_lag_s: float


class EventDetail(EventView):
    """With the hashed record and its place in the chain."""

    object: Literal["audit.event"]
    schema_version: int
    boot_id: UUID
    node_seq: int
    personal: dict[str, Any] | None = Field(
        description="what may be erased: the caller's values, and what an administrator's record says about whom"
    )
    prev_hash: str = Field(description="hexadecimal")
    hash: str
    seal_id: int | None
    record: dict[str, Any] = Field(description="exactly what is hashed, parsed")
