"""The stages of a request, each the former and what was learned or decided next. Frozen, standard library only.

A function that takes a stage says with its type what must have happened before. A request that is refused ends in the
last stage that it reached, inside `Concluded`; only those who read records of any stage (audit, metrics) ask which it
was, by `request_of` and its like.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from gateway.flow.context import RequestContext
from gateway.flow.evolve import advance
from gateway.flow.parts import Content
from gateway.flow.values import (
    ANONYMOUS,
    Decision,
    Estimate,
    Failure,
    Finding,
    Inspection,
    ModelCard,
    ModelRequest,
    Outcome,
    Principal,
    Reservation,
    RoutePlan,
    Signals,
    Timings,
    Usage,
)

UNTIMED = Timings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """Something has come in. Nobody knows yet from whom, and no byte of its body was read."""

    context: RequestContext
    timings: Timings = UNTIMED

    @property
    def request_id(self) -> UUID:
        return self.context.request_id

    def authenticated(self, principal: Principal) -> Authenticated:
        return advance(self, Authenticated, principal=principal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Authenticated(Received):
    principal: Principal

    def read(self, request: ModelRequest, prompt_digest: bytes) -> Read:
        return advance(self, Read, request=request, prompt_digest=prompt_digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(Authenticated):
    """`request` is what goes on: once something was taken out of it, without that."""

    request: ModelRequest
    prompt_digest: bytes
    """Of the request as it came."""

    def authorized(self, asked: Decision) -> Authorized:
        return advance(self, Authorized, asked=asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorized(Read):
    """The policy has decided, one way or the other."""

    asked: Decision
    """On the model as the caller named it."""

    def inspected(self, inspection: Inspection) -> Inspected:
        request = inspection.request or self.request
        return advance(self, Inspected, inspection=inspection, findings=inspection.findings, request=request)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected(Authorized):
    inspection: Inspection
    """The latest."""
    findings: tuple[Finding, ...]
    """Of all inspections."""

    def routed(self, plan: RoutePlan) -> Routed:
        return advance(self, Routed, plan=plan, fallbacks=(), left=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed(Inspected):
    plan: RoutePlan
    fallbacks: tuple[str, ...]
    """Candidates that did not answer."""
    left: ModelCard | None
    """The last of them that had been chosen to serve the request."""

    def targeted(self, decision: Decision) -> Targeted:
        return advance(self, Targeted, decision=decision)

    def fell_back(self, plan: RoutePlan, card: ModelCard) -> Routed:
        """From any later stage back to this one, to try the next candidate."""
        left = card if isinstance(self, Reserved) else self.left
        return advance(self, Routed, plan=plan, fallbacks=(*self.fallbacks, card.id), left=left)


@dataclass(frozen=True, slots=True, kw_only=True)
class Targeted(Routed):
    """The policy has decided on one candidate."""

    decision: Decision
    """On the resolved model."""

    def estimated(self, estimate: Estimate) -> Estimated:
        return advance(self, Estimated, estimate=estimate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated(Targeted):
    estimate: Estimate
    """The most that it may use on this candidate."""

    def reserved(self, reservation: Reservation, served: ModelCard, timings: Timings) -> Reserved:
        return advance(self, Reserved, reservation=reservation, served=served, timings=timings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved(Estimated):
    """Everything is decided, and the limits hold a claim: it may run."""

    reservation: Reservation
    served: ModelCard


@dataclass(frozen=True, slots=True, kw_only=True)
class Concluded:
    """How a request ended, whatever stage it had reached."""

    stage: Received
    outcome: Outcome
    status: int
    claim: Reservation | None = None
    """Of a request that ran, or of what a refusal costs."""
    usage: Usage = field(default_factory=Usage)
    cost_micro: int = 0
    signals: Signals | None = None
    finish_reason: str | None = None
    stop_cause: str | None = None
    failure: Failure | None = None
    findings: tuple[Finding, ...] = ()
    """In the request and in its answer."""
    timings: Timings = UNTIMED
    response_digest: bytes | None = None
    completion_contents: tuple[Content, ...] | None = field(default=None, repr=False)
    """By choice; kept only where an obligation asks for content (`encrypted`, `redacted`)."""
    tool_calls: int = 0
    """That the answer has made."""

    @classmethod
    def unrun(
        cls, stage: Received, outcome: Outcome, status: int, failure: Failure | None, charge: Reservation | None
    ) -> Concluded:
        """For the intent of a request that will not run."""
        claim = stage.reservation if isinstance(stage, Reserved) else charge
        return cls(
            stage=stage,
            outcome=outcome,
            status=status,
            claim=claim,
            failure=failure,
            findings=findings_of(stage),
            timings=stage.timings,
        )

    @property
    def request_id(self) -> UUID:
        return self.stage.context.request_id


Exchange: TypeAlias = Reserved | Concluded
"""What a record is made of: a request that is about to run, or one that has ended."""


def stage_of(exchange: Exchange) -> Received:
    return exchange.stage if isinstance(exchange, Concluded) else exchange


def principal_of(stage: Received) -> Principal:
    return stage.principal if isinstance(stage, Authenticated) else ANONYMOUS


def request_of(stage: Received) -> ModelRequest | None:
    return stage.request if isinstance(stage, Read) else None


def decision_of(stage: Received) -> Decision | None:
    """On the resolved model where there is one, else on the model as asked."""
    if isinstance(stage, Targeted):
        return stage.decision
    return stage.asked if isinstance(stage, Authorized) else None


def findings_of(stage: Received) -> tuple[Finding, ...]:
    return stage.findings if isinstance(stage, Inspected) else ()


def plan_of(stage: Received) -> RoutePlan | None:
    return stage.plan if isinstance(stage, Routed) else None


def served_of(stage: Received) -> ModelCard | None:
    """The model that was last chosen to serve the request."""
    if isinstance(stage, Reserved):
        return stage.served
    return stage.left if isinstance(stage, Routed) else None
