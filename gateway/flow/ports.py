"""Ports of the pipeline to the domains. Contracts only; implementations live in their domain folder.

Functions that decide return a value; they do not raise for a "no". They raise `GatewayError` only when they cannot
decide (a store is down, a key set was never fetched) or, for authentication, when nobody can be identified.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from gateway.flow.context import RequestContext
from gateway.flow.stages import Concluded, Exchange
from gateway.flow.values import (
    AdminEvent,
    Chunk,
    Credential,
    Decision,
    EmbeddingRequest,
    Estimate,
    Finding,
    GeneratingRequest,
    Inspection,
    LimitRule,
    LimitVerdict,
    ModelCard,
    ModelRequest,
    PastDecision,
    Prepared,
    Principal,
    Reservation,
    RoutePlan,
    SchedulingHints,
    Usage,
)


class Authenticator(Protocol):
    async def authenticate(self, credential: Credential, context: RequestContext) -> Principal:
        """Verify a bearer token or an API key.

        May fetch a key set (single flight). Raises `Unauthenticated` (401), `NotPermitted` (403
        `client_not_allowed`, `groups_overage`) or `Unavailable` (503 `idp_unavailable`). Mutates only caches.
        """
        ...

    def is_revoked(self, principal: Principal) -> bool:
        """Cheap, local, no I/O: asked between chunks of a running answer."""
        ...

    def current(self, principal: Principal) -> Principal:
        """The same caller with the rights it has now. As cheap, and asked as often."""
        ...


class Authorizer(Protocol):
    def decide(self, principal: Principal, action: str, model: ModelCard | None, context: RequestContext) -> Decision:
        """Pure over the current snapshot; under 50 microseconds at p99 for 1,000 rules.

        `model=None` is for actions without a model (`audit.read`, `policy.write`). Raises `Unavailable`
        (503 `policy_unavailable`) when no snapshot may be served any more.
        """
        ...

    def limits_of(self, principal: Principal, context: RequestContext) -> tuple[LimitRule, ...]:
        """The limits that count this caller whatever is asked for; those of a single model are not among them.

        Raises as `decide` does.
        """
        ...

    def visible_models(self, principal: Principal, context: RequestContext) -> tuple[ModelCard, ...]:
        """Catalog entries for which some inference action is allowed, in catalog order."""
        ...

    @property
    def version(self) -> int: ...


class Limiter(Protocol):
    def precheck(self, limits: Iterable[LimitRule]) -> LimitVerdict | None:
        """Local and free of I/O: a denial already known to hold (a window seen full), or None to go on."""
        ...

    async def reserve(self, limits: Sequence[LimitRule], estimate: Estimate, card: ModelCard) -> LimitVerdict:
        """Count the request and claim tokens, money and a concurrency slot in all windows, or none of them.

        One round trip. The claim is a lease: a crash frees it after `expires_at`.
        """
        ...

    async def settle(self, reservation: Reservation, usage: Usage, cost_micro: int) -> None:
        """Replace the claim by what was used and free the slot. Idempotent; must not raise when the store is down
        (the settlement is kept and retried)."""
        ...


class OutputGuard(Protocol):
    """One answer on its way out; one guard per answer."""

    blocked: str | None
    """The category that ended the answer: nothing after it may leave. None while it may go on."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found so far, direction `out`."""
        ...

    async def check(self, chunk: Chunk) -> tuple[Chunk, ...]:
        """The chunk with the text that may leave now; what is held back comes with a later one of the same choice, or
        before the first one of another part of it.

        Called with every chunk in order. Raises `Unavailable` (503 `guardrails_unavailable`) where policy refuses what
        cannot be inspected.
        """
        ...

    async def flush(self) -> tuple[Chunk, ...]:
        """After the last chunk: what is still held of choices that never got a `finish_reason`."""
        ...


class Inspector(Protocol):
    async def inspect_input(self, request: ModelRequest, decision: Decision) -> Inspection:
        """Inspect everything of the request that a model would read, as the decision's obligations say.

        Beside the event loop and within a time. Raises `Unavailable` (503 `guardrails_unavailable`) when that failed
        and the obligations refuse then; otherwise a finding says that nothing was inspected.
        """
        ...

    def guard_output(self, request: ModelRequest, decision: Decision) -> OutputGuard | None:
        """None where the obligations ask for no inspection of the answer."""
        ...


class Router(Protocol):
    def plan(self, request: ModelRequest, asked: ModelCard, permitted: Sequence[ModelCard]) -> RoutePlan:
        """Choose among `permitted` real models only; `asked` may be virtual. Pure.

        Raises `NotFound` when nothing permitted can serve the request.
        """
        ...


class Catalog(Protocol):
    def get(self, model_id: str) -> ModelCard | None:
        """Exact, case-sensitive lookup; never normalizes the caller's string."""
        ...

    def all(self) -> tuple[ModelCard, ...]: ...


class AuditLog(Protocol):
    async def intent(self, exchange: Exchange) -> None:
        """Of a request that is about to run, or of one that will not.

        Returns once the intent record is durable. Raises `Unavailable` (503 `audit_unavailable`).
        """
        ...

    async def completion(self, exchange: Concluded) -> None:
        """Write the completion; in strict mode returns once durable, otherwise once queued. Never loses it."""
        ...

    async def admin(self, event: AdminEvent) -> None:
        """Durable before the admin answer leaves."""
        ...


class Backend(Protocol):
    """One way of running one or more models.

    `prepare` gives the request in the form in which `generate` or `embed` will run it; the caller holds it, and a
    backend keeps nothing between the two calls.
    """

    async def prepare(self, request: ModelRequest, card: ModelCard) -> Prepared:
        """Count the prompt. Beside the event loop, and for no more work than a prompt that fits.

        Raises `InvalidRequest`, `ContextLengthExceeded` (a prompt known to be too long before it is counted) or
        `Unavailable`.
        """
        ...

    def generate(
        self,
        request: GeneratingRequest,
        card: ModelCard,
        *,
        prepared: Prepared,
        request_id: str,
        max_output_tokens: int,
        tenant_salt: bytes,
        scheduling: SchedulingHints,
    ) -> AsyncIterator[Chunk]:
        """Start at once and stream. Closing the iterator (`aclose`) aborts and frees everything within a step.

        Raises `InvalidRequest` / `ContextLengthExceeded` before the first chunk, `Unavailable` when down.
        """
        ...

    async def embed(
        self,
        request: EmbeddingRequest,
        card: ModelCard,
        *,
        prepared: Prepared,
        scheduling: SchedulingHints,
    ) -> tuple[tuple[tuple[float, ...], ...], Usage]:
        """One vector per input, in order, in the same queue and share as generations."""
        ...

    def status(self) -> Mapping[str, object]:
        """`{"state": "loading"|"ready"|"failed"|"stopped", "stage": str, "percent": float, ...}`; no I/O."""
        ...


class Observer(Protocol):
    """Told once about every finished request; must neither block nor raise."""

    def finished(self, exchange: Concluded) -> None: ...


class PastDecisions(Protocol):
    """Policy decisions of the past, read from the audit trail, for replay against a proposed policy."""

    async def recent(
        self, *, since: datetime | None, until: datetime | None, limit: int, tenants: tuple[str, ...] | None
    ) -> Sequence[PastDecision]:
        """Newest first, at most `limit`, of these tenants (None: of all); only requests on which the policy decided.

        Raises `Unavailable`.
        """
        ...
