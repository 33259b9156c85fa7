"""The values a request grows into. Frozen, standard library only; what was decided is what is recorded.

A stage takes the exchange so far and returns one more of these. Nothing is mutated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal
from uuid import UUID

from gateway.flow.context import RequestContext

Action = Literal["chat", "completions", "embeddings"]


class Effect(StrEnum):
    ALLOW = "allow"
    DENY = "deny"


class Outcome(StrEnum):
    """How a request ended, for the completion record (audit.md section 2)."""

    OK = "ok"
    DENIED = "denied"
    CLIENT_DISCONNECT = "client_disconnect"
    CANCELLED = "cancelled"
    ENGINE_ERROR = "engine_error"
    ERROR = "error"
    INTERRUPTED = "interrupted"


# ---------------------------------------------------------------------------------------------- receive


@dataclass(frozen=True, slots=True)
class Message:
    """One chat turn. `content` is text; parts are joined by the API before they get here."""

    role: Literal["system", "user", "assistant", "tool", "developer"]
    content: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """What the caller asked of the sampler. `None` means "the model's default".

    Ranges are checked by the API; a backend refuses what it cannot honour instead of ignoring it.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    ignore_eos: bool = False
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    prompt_logprobs: int | None = None
    echo: bool = False
    grammar: Mapping[str, Any] | None = None
    """`{"type": "json_schema"|"json_object"|"regex"|"choice"|"grammar", "value": ...}` or None."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A parsed, validated request for a model. `model` is the caller's string; only `RoutePlan` names what runs."""

    action: Action
    model: str
    messages: tuple[Message, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    inputs: tuple[str, ...] = ()
    params: GenerationParams = GenerationParams()
    stream: bool = False
    include_usage: bool = False
    user_label: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    base64_vectors: bool = False
    """Embeddings only: pack the vectors of the answer."""
    raw_body: bytes | None = field(default=None, repr=False, compare=False)
    """The bytes as received, for upstream pass-through without a second encoding; never logged."""


# ----------------------------------------------------------------------------------------- authenticate


@dataclass(frozen=True, slots=True)
class Credential:
    """The one credential of a request. `repr` never shows the value."""

    channel: Literal["authorization", "x-api-key", "api-key"]
    value: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Principal:
    """A verified identity. Roles are plain names (`analyst`), already mapped from claims by configuration."""

    tenant: str
    issuer: str
    subject: str
    kind: Literal["user", "service", "anonymous"] = "user"
    roles: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    department: str | None = None
    clearance: str | None = None
    """Highest data class this principal may send: public < internal < confidential < restricted."""
    client_id: str | None = None
    credential_id: str | None = None
    """Log-safe id of the token (`jti`) or API key."""
    credential_fingerprint: str | None = None
    display: str | None = None
    provider: str | None = None
    issued_at: datetime | None = None
    expires_at: datetime | None = None
    narrowed_models: tuple[str, ...] | None = None
    """An API key may be narrower than its owner: only these models, `()` none, None no extra limit."""


ANONYMOUS = Principal(tenant="-", issuer="-", subject="-", kind="anonymous")


# -------------------------------------------------------------------------------------------- authorise


@dataclass(frozen=True, slots=True)
class Obligations:
    """The only way policy steers later stages."""

    max_output_tokens: int | None = None
    content_logging: Literal["none", "hash", "redacted", "encrypted"] = "hash"
    redaction: Literal["off", "flag", "redact", "block"] = "off"
    guardrails: str = "default"
    require_locality: str | None = None
    priority: int = 0
    share_weight: float = 1.0


Window = Literal["minute", "day", "month"]


@dataclass(frozen=True, slots=True)
class LimitRule:
    """One limit that applies to a request, with its counter key already resolved by `access`.

    `scope_key` names the counter, e.g. `user:acme/https://idp/5f3c` or `department:acme/finance`.
    `None` in a quantity means that this rule does not limit it. Money is in micro-units of `currency`.
    """

    id: str
    scope: str
    scope_key: str
    window: Window = "minute"
    window_s: int | None = None
    """Length of a rolling/fixed window in seconds when it is none of the named ones."""
    tz: str = "UTC"
    requests: int | None = None
    tokens: int | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    concurrent: int | None = None
    cost_micro: int | None = None
    currency: str = "EUR"
    warn_at: tuple[float, ...] = ()
    on_store_error: Literal["deny", "local", "allow"] = "local"
    sliding: bool = False
    """Weigh the previous window in, so that no burst of twice the limit fits around a boundary. For windows in
    seconds and minutes only; calendar windows are always fixed."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer of the policy to one (principal, action, resource)."""

    effect: Effect
    reason: str
    """Public sentence; safe to show the caller."""
    rule_id: str | None
    policy_version: int
    policy_sha256: str
    matched: tuple[str, ...] = ()
    obligations: Obligations = Obligations()
    limits: tuple[LimitRule, ...] = ()
    hidden: bool = False
    """True when the policy hides models: the denial must look like 404 `model_not_found`."""

    @property
    def allowed(self) -> bool:
        return self.effect is Effect.ALLOW


# ------------------------------------------------------------------------------------------------ route


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One model of the catalogue. Prices are micro-units of currency per million tokens."""

    id: str
    backend: str
    tier: Literal["small", "large"] | None = None
    virtual: bool = False
    """True for names such as `auto` that only the router turns into a real model."""
    labels: Mapping[str, str] = field(default_factory=dict)
    context_window: int = 4096
    max_output_tokens: int | None = None
    price_in_micro: int = 0
    price_out_micro: int = 0
    currency: str = "EUR"
    owned_by: str = "esclusa"
    created: int = 0
    upstream_model: str | None = None
    actions: tuple[str, ...] = ("chat", "completions")


@dataclass(frozen=True, slots=True)
class RoutePlan:
    """Models to try in order, all permitted. `reason` is public and goes to `x-esclusa-route-reason`."""

    requested: str
    candidates: tuple[ModelCard, ...]
    reason: str
    route: Literal["direct", "small", "large", "fallback", "escalated"] = "direct"
    score: float | None = None
    router_version: str = "0"
    features: Mapping[str, float] = field(default_factory=dict)

    @property
    def target(self) -> ModelCard:
        return self.candidates[0]


# ------------------------------------------------------------------------------------------ limits


@dataclass(frozen=True, slots=True)
class Estimate:
    """Upper bound of what a request may use, from exact prompt tokens."""

    prompt_tokens: int
    max_output_tokens: int
    cost_micro: int = 0
    choices: int = 1
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Headroom:
    """What is left in the tightest window of each kind, for `x-ratelimit-*`; None where nothing limits it."""

    limit_requests: int | None = None
    remaining_requests: int | None = None
    reset_requests_s: float | None = None
    limit_tokens: int | None = None
    remaining_tokens: int | None = None
    reset_tokens_s: float | None = None


@dataclass(frozen=True, slots=True)
class Reservation:
    """A granted, leased claim on all windows of a request; settled exactly once.

    `granted_output_tokens` may be below what was asked: the engine must stop there (`stop: "budget"`).
    """

    id: str
    tokens: int
    cost_micro: int
    granted_output_tokens: int
    expires_at: datetime
    limits: tuple[LimitRule, ...] = ()
    headroom: Headroom = Headroom()
    warnings: tuple[str, ...] = ()
    clamped_by: str | None = None
    """Id of the budget rule that clamped the output, or None."""
    degraded: bool = False
    store: Literal["valkey", "local"] = "valkey"


@dataclass(frozen=True, slots=True)
class LimitVerdict:
    """The answer of the limiter: a reservation, or why not and when to come back."""

    allowed: bool
    reservation: Reservation | None = None
    kind: Literal["requests", "tokens", "concurrency", "budget", "store"] | None = None
    rule_id: str | None = None
    reason: str = ""
    retry_after_s: float | None = None
    headroom: Headroom = Headroom()
    degraded: bool = False


# ---------------------------------------------------------------------------------------------- inspect


@dataclass(frozen=True, slots=True)
class Finding:
    """Something a detector saw. Never holds the matched text."""

    detector: str
    category: str
    count: int
    action: Literal["flag", "redact", "block"]
    direction: Literal["in", "out"]
    score: float = 1.0


@dataclass(frozen=True, slots=True)
class Inspection:
    action: Literal["allow", "redact", "block"] = "allow"
    findings: tuple[Finding, ...] = ()
    messages: tuple[Message, ...] | None = None
    """Replacement messages when something was redacted, else None."""


# --------------------------------------------------------------------------------------------- generate


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    source: Literal["engine", "upstream", "estimated"] = "engine"

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token: str
    token_id: int
    logprob: float
    token_bytes: tuple[int, ...] = ()
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Signals:
    """Evidence from the engine about one answer, for audit and routing."""

    mean_logprob: float | None = None
    min_logprob: float | None = None
    first_entropy: float | None = None
    repetition: bool = False
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    cached_tokens: int = 0
    preemptions: int = 0
    model_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an answer. The last chunk of a choice has `finish_reason`; the very last one has `usage`.

    `text` is always whole UTF-8; deltas of one choice concatenate to the full decode.
    `finish_reason`: stop | length | content_filter | tool_calls | abort. `stop` in `stop_cause` terms
    (`budget`, `revoked`, `deadline`, `policy`) says why the gateway ended it early.
    """

    index: int = 0
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    stop_cause: str | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    usage: Usage | None = None
    signals: Signals | None = None
    vectors: tuple[tuple[float, ...], ...] | None = None
    """Embeddings, one per input in order; only in the single chunk of an embedding request."""
    raw: bytes | None = None
    """An upstream's SSE frame to pass on unchanged, when nothing had to be rewritten."""


# ---------------------------------------------------------------------------------------------- record


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
class Exchange:
    """Everything known about one request so far. Grown with `dataclasses.replace`; audit serialises it."""

    context: RequestContext
    request: ChatRequest | None = None
    principal: Principal = ANONYMOUS
    asked: Decision | None = None
    """Decision on the model as the caller named it."""
    inspection: Inspection | None = None
    plan: RoutePlan | None = None
    decision: Decision | None = None
    """Decision on the resolved model."""
    estimate: Estimate | None = None
    reservation: Reservation | None = None
    served: ModelCard | None = None
    usage: Usage = Usage()
    cost_micro: int = 0
    signals: Signals | None = None
    finish_reason: str | None = None
    stop_cause: str | None = None
    outcome: Outcome | None = None
    failure: Failure | None = None
    status: int | None = None
    findings: tuple[Finding, ...] = ()
    fallbacks: tuple[str, ...] = ()
    timings: Timings = Timings()
    prompt_digest: bytes | None = None
    response_digest: bytes | None = None
    completion_text: str | None = field(default=None, repr=False)
    """Kept only when an obligation asks for content logging beyond `hash`."""

    @property
    def request_id(self) -> UUID:
        return self.context.request_id


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
