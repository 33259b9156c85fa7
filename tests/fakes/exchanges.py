"""Exchanges as the pipeline would hand them over, with every group of fields filled."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from gateway.flow.context import Client, RequestContext, SystemIds
from gateway.flow.evolve import advance
from gateway.flow.stages import Authorized, Concluded, Received, Reserved
from gateway.flow.values import (
    AdminEvent,
    ChatRequest,
    Decision,
    Effect,
    Estimate,
    Failure,
    GenerationParams,
    Inspection,
    Message,
    ModelCard,
    Outcome,
    Principal,
    Reservation,
    RoutePlan,
    Signals,
    Timings,
    Usage,
)

IDS = SystemIds()
SMALL = ModelCard(id="smollm2-135m-instruct", backend="local", tier="small", currency="EUR")
ANA = Principal(
    tenant="acme",
    issuer="https://idp.acme.example",
    subject="u-1042",
    roles=frozenset({"analyst", "employee"}),
    department="finanzas",
    client_id="portal",
    credential_id="jti-1",
    display="Ana Muñoz",
)
ALLOW = Decision(
    effect=Effect.ALLOW,
    reason="analysts may use small models",
    rule_id="r-7",
    policy_version=3,
    policy_sha256="ab" * 32,
)


def context(request_id: UUID | None = None, **client: Any) -> RequestContext:
    return RequestContext(
        request_id=request_id or IDS.uuid7(),
        received_at=datetime.now(UTC),
        started_s=0.0,
        route="/v1/chat/completions",
        client=Client(**{"ip": "10.0.0.7", "user_agent": "openai-python/2.0", **client}),
    )


def admitted(principal: Principal = ANA, model: str = "auto", **changes: Any) -> Reserved:
    """An exchange at stage 9: about to be run."""
    reserved = Reserved(
        context=context(),
        principal=principal,
        request=ChatRequest(
            model=model,
            messages=(Message.of_text("user", "¿Cuál es el saldo?"),),
            params=GenerationParams(max_tokens=64, temperature=0.7, seed=7),
            stream=True,
        ),
        prompt_digest=b"p" * 32,
        asked=ALLOW,
        inspection=Inspection(),
        findings=(),
        plan=RoutePlan(requested=model, candidates=(SMALL,), reason="short question", route="small", score=0.12),
        fallbacks=(),
        left=None,
        decision=ALLOW,
        estimate=Estimate(26, 64),
        reservation=Reservation(
            id="res-1", tokens=90, cost_micro=12, granted_output_tokens=64, expires_at=datetime.now(UTC)
        ),
        served=SMALL,
        timings=Timings(auth_us=40, policy_us=9, limits_us=300, route_us=20),
    )
    return replace(reserved, **changes)


def finished(reserved: Reserved, outcome: Outcome = Outcome.OK, **changes: Any) -> Concluded:
    """The same exchange at stage 12."""
    done = Concluded(
        stage=reserved,
        outcome=outcome,
        status=200,
        claim=reserved.reservation,
        usage=Usage(prompt_tokens=26, completion_tokens=12, cached_tokens=16),
        cost_micro=9,
        signals=Signals(mean_logprob=-0.41, min_logprob=-3.2, queue_s=0.001, prefill_s=0.02, decode_s=0.3),
        finish_reason="stop",
        findings=reserved.findings,
        timings=replace(reserved.timings, ttft_us=21_000, total_us=330_000),
        response_digest=b"r" * 32,
    )
    return replace(done, **changes)


def refused(stage: Received, code: str, status: int, outcome: Outcome = Outcome.DENIED) -> Concluded:
    """A request that got no further than `stage`."""
    failure = Failure(status, code, "not permitted", "rule r-9")
    return Concluded(stage=stage, outcome=outcome, status=status, failure=failure, timings=stage.timings)


def denied(principal: Principal = ANA, code: str = "model_not_permitted", status: int = 403) -> Concluded:
    return refused(forbidden(principal), code, status)


def forbidden(principal: Principal = ANA) -> Authorized:
    """The stage of a request that policy refuses."""
    deny = replace(ALLOW, effect=Effect.DENY, rule_id="r-9", reason="only analysts may use large models")
    return advance(admitted(principal, model="qwen2.5-coder-0.5b-instruct"), Authorized, asked=deny)


def change(action: str = "policy.write", **changes: Any) -> AdminEvent:
    event = AdminEvent(
        context=context(),
        principal=ANA,
        kind="admin",
        action=action,
        target="policies/default",
        allowed=True,
        status=200,
        reason="trimestre nuevo",
        before_etag="v3",
        after_etag="v4",
        diff={"rate": 0.5, "added": ["r-10"]},
        policy_version=3,
        rule_id="r-admin",
    )
    return replace(event, **changes)
