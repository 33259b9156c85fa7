"""The values a request grows into. Frozen, standard library only; what was decided is what is recorded.

A stage takes the exchange so far and returns one more of these. Nothing is mutated. The request is in `flow.request`,
the decisions in `flow.decisions`, the answer in `flow.deltas`, the record here; everyone imports them from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal
from uuid import UUID

from gateway.flow.context import RequestContext
from gateway.flow.decisions import (
    Decision,
    Effect,
    Estimate,
    Finding,
    Headroom,
    Inspection,
    LimitRule,
    LimitVerdict,
    ModelCard,
    Obligations,
    Reservation,
    RoutePlan,
    Window,
)
from gateway.flow.deltas import (
    ChoiceEnd,
    Chunk,
    Delta,
    PromptLogprobs,
    ReasoningDelta,
    RefusalDelta,
    Signals,
    TextDelta,
    TokenCount,
    TokenLogprob,
    ToolCallDelta,
    Usage,
    UsageReport,
    Vectors,
    Verdicts,
)
from gateway.flow.request import (
    ANONYMOUS,
    Action,
    ChatCount,
    ChatRequest,
    CompletionCount,
    CompletionRequest,
    Credential,
    EmbeddingRequest,
    GeneratingRequest,
    GenerationParams,
    Message,
    ModelRequest,
    ModerationRequest,
    Principal,
    Prompt,
    RankRequest,
)
from gateway.flow.tools import ToolChoice, ToolSpec

__all__ = [
    "ANONYMOUS",
    "Action",
    "AdminEvent",
    "ChatCount",
    "ChatRequest",
    "ChoiceEnd",
    "Chunk",
    "CompletionCount",
    "CompletionRequest",
    "Credential",
    "Decision",
    "Delta",
    "Effect",
    "EmbeddingRequest",
    "Estimate",
    "Failure",
    "Finding",
    "GeneratingRequest",
    "GenerationParams",
    "Headroom",
    "Inspection",
    "LimitRule",
    "LimitVerdict",
    "Message",
    "ModelCard",
    "ModelRequest",
    "ModerationRequest",
    "Obligations",
    "Outcome",
    "PastDecision",
    "Prepared",
    "Principal",
    "Prompt",
    "PromptLogprobs",
    "RankRequest",
    "ReasoningDelta",
    "RefusalDelta",
    "Reservation",
    "RoutePlan",
    "SchedulingHints",
    "Signals",
    "TextDelta",
    "Timings",
    "TokenCount",
    "TokenLogprob",
    "ToolCallDelta",
    "ToolChoice",
    "ToolSpec",
    "Usage",
    "UsageReport",
    "Vectors",
    "Verdicts",
    "Window",
]


class Outcome(StrEnum):
    """How a request ended, for the completion record (audit.md section 2)."""

    OK = "ok"
    DENIED = "denied"
    CLIENT_DISCONNECT = "client_disconnect"
    CANCELLED = "cancelled"
    ENGINE_ERROR = "engine_error"
    ERROR = "error"
    INTERRUPTED = "interrupted"
    RECORD_LOST = "record_lost"
    """Nobody can tell: the record of how it ended may be among those that a damaged spool lost."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request as one backend will run it, from `prepare` to `generate` or `embed`; nothing else holds it."""

    prompt_tokens: int | None = None
    """Exact, after the chat template, of all prompts together; None when the backend cannot know."""
    payload: Any = field(default=None, repr=False)
    """The backend's own: token ids, say. Nobody else reads it."""
    counted: TokenCount | Verdicts | None = None
    """The whole answer, of a request for which no model runs."""
    longest_prompt: int | None = None
    """Tokens of the longest of several prompts."""


@dataclass(frozen=True, slots=True)
class SchedulingHints:
    """What a backend with a queue of its own orders requests by; policy and identity say it, not the caller."""

    share_key: str
    """Who shares one share of the engine: a tenant's subject."""
    share_weight: float = 1.0
    priority: int = 0
    """Lower runs first."""
    deadline_s: float | None = None
    """On the clock of `Clock.monotonic_s`."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Microseconds spent in each stage; None where the request did not get that far."""

    auth_us: int | None = None
    policy_us: int | None = None
    limits_us: int | None = None
    guard_us: int | None = None
    route_us: int | None = None
    audit_us: int | None = None
    overhead_us: int | None = None
    """From arrival to the backend's start: what the gateway itself added before the model."""
    ttft_us: int | None = None
    total_us: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """The error a caller was given, as recorded."""

    status: int
    code: str
    message: str
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class AdminEvent:
    """A change or a read made through the admin API; before/after are small JSON documents."""

    context: RequestContext
    principal: Principal
    kind: Literal["admin", "access"]
    action: str
    target: str
    allowed: bool
    status: int
    reason: str | None = None
    before_etag: str | None = None
    after_etag: str | None = None
    diff: Mapping[str, Any] | None = None
    approver: str | None = None
    error_code: str | None = None
    policy_version: int | None = None
    rule_id: str | None = None


@dataclass(frozen=True, slots=True)
class PastDecision:
    """A policy decision as the audit trail remembers it: what was asked and what came out, for replay.

    `principal` holds what was recorded; groups and scopes may be missing from it. `model` is the resolved model, or
    the requested one where nothing was resolved.
    """

    request_id: UUID
    at: datetime
    principal: Principal
    action: str
    model: str | None
    effect: Effect
    rule_id: str | None = None
    policy_version: int | None = None
    data_class: str | None = None
    purpose: str | None = None
    source_ip: str | None = None
