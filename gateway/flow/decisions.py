"""Decisions: permission, route, limits, inspection. Each with its reason. Frozen, standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal

from gateway.flow.request import ModelRequest


class Effect(StrEnum):
    ALLOW = "allow"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class Obligations:
    """The only way policy steers later stages."""

    max_output_tokens: int | None = None
    default_output_tokens: int | None = None
    """Of an answer whose caller names no length."""
    repetition_guard: Literal["off", "stop"] = "off"
    """Whether an answer that does nothing but repeat itself is ended."""
    content_logging: Literal["none", "hash", "redacted", "encrypted"] = "hash"
    redaction: Literal["off", "flag", "redact", "block"] = "off"
    """What becomes of personal data and secrets, in prompts and answers."""
    guardrails: str = "default"
    """`off | default | strict`: what becomes of attempts to steer the model, and of what cannot be inspected."""
    require_locality: str | None = None
    prefix_cache: Literal["tenant", "department", "user"] = "tenant"
    """Who may share what the engine has already computed of a prompt."""
    cached_tokens: Literal["show", "hide"] = "show"
    """Whether the caller hears how much of the prompt was computed before."""
    tools: Literal["allowed", "denied"] = "allowed"
    """Whether the model may be offered tools."""
    response_store_days: int = 0
    """How long a response is kept for its owner who asks for that; 0: not at all."""
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
    default_data_class: str | None = None
    """What a request without a data class was decided by."""
    hint: str | None = None
    """What the caller could add to be granted it; as safe to show as the reason."""
    fixed_reason: bool = False
    """True when the reason is a sentence of the product's own; False when an administrator wrote it."""
    named_words: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    """Purposes that this policy names, and the data classes: what a request states may be one of them or free text."""

    @property
    def allowed(self) -> bool:
        return self.effect is Effect.ALLOW


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One model of the catalog. Prices are micro-units of currency per million tokens."""

    id: str
    backend: str
    tier: Literal["small", "large"] | None = None
    virtual: bool = False
    """True for names such as `auto` that only the router turns into a real model."""
    labels: Mapping[str, str] = field(default_factory=dict)
    context_window: int = 4096
    max_output_tokens: int | None = None
    default_max_tokens: int | None = None
    """Of an answer whose caller names none."""
    price_in_micro: int = 0
    price_out_micro: int = 0
    currency: str = "EUR"
    owned_by: str = "esclusa"
    created: int = 0
    upstream_model: str | None = None
    actions: tuple[str, ...] = ("chat", "completions")
    tools: bool = True
    """Whether it calls tools."""
    languages: tuple[str, ...] = ()
    """That it speaks, as ISO 639-1 codes; empty: nobody has said."""
    sampling: Mapping[str, float] = field(default_factory=dict)
    """What it samples with where the caller says nothing, by OpenAI's and vLLM's names."""
    embedding_dimensions: tuple[int, ...] = ()
    """Sizes below its own to which its embeddings may be cut."""


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


@dataclass(frozen=True, slots=True)
class Finding:
    """Something a detector saw. Never holds the matched text."""

    detector: str
    category: str
    count: int
    action: Literal["flag", "redact", "block"]
    direction: Literal["in", "out"]
    score: float = 1.0
    where: str = ""
    """The role of the message, `prompt`, `input`, `parameters` or `answer`."""


@dataclass(frozen=True, slots=True)
class Inspection:
    action: Literal["allow", "redact", "block"] = "allow"
    findings: tuple[Finding, ...] = ()
    request: ModelRequest | None = None
    """The request to go on with when something was redacted, else None."""
