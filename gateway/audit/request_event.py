"""The audit record of an exchange. Pure: records decisions, makes none."""

from __future__ import annotations

from collections.abc import Container, Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from gateway.audit.canonical import exact, micro
from gateway.audit.columns import encode_side, with_contents
from gateway.audit.content import Sealed, digests
from gateway.audit.event import Caller, Origin, Phase, Record, caller, filled, finish, head, text
from gateway.audit.personal import about, commitment, storable_json
from gateway.audit.public_path import HIDDEN
from gateway.flow.stages import (
    Concluded,
    Exchange,
    Read,
    Received,
    Routed,
    decision_of,
    plan_of,
    principal_of,
    request_of,
    served_of,
    stage_of,
)
from gateway.flow.values import (
    ChatRequest,
    CompletionRequest,
    Decision,
    EmbeddingRequest,
    Finding,
    ModelRequest,
    Outcome,
    Signals,
)


def request_caller(origin: Origin, exchange: Exchange) -> Caller:
    """Made once per request and given to both of its records."""
    stage = stage_of(exchange)
    request, words = request_of(stage), free_words(stage)
    if request is None:
        return caller(origin, stage.context, principal_of(stage), free_words=words)
    return caller(origin, stage.context, principal_of(stage), request.user_label, request.metadata, words)


def free_words(stage: Received) -> dict[str, str]:
    """A model name that neither the catalog nor the deciding policy knows: it may be anybody's name.

    A policy is asked about models of the catalog only, so a request that it decided on names one of them. Without a
    decision nothing is known, and every word is free.
    """
    context, request, decision = stage.context, request_of(stage), decision_of(stage)
    named = frozenset() if decision is None else decision.named_words
    words = {} if request is None or decision is not None else {"model_requested": request.model}
    for name, value in (("purpose", context.purpose), ("data_class", context.data_class)):
        if value is not None and value not in named:
            words[name] = value
    return words


def request_record(
    origin: Origin,
    event_id: UUID,
    now: datetime,
    phase: Phase,
    exchange: Exchange,
    by: Caller,
    sealed: Sequence[Sealed] = (),
) -> Record:
    """The `intent`, `completion` or `denied` record of a request; `sealed` travels beside it, its digests inside."""
    stage, end = stage_of(exchange), exchange if isinstance(exchange, Concluded) else None
    document = head(origin, event_id, now, phase, stage.context)
    document["who"], beside = by.who, dict(by.personal)
    document["what"] = _what(stage, None if end is None else end.signals, by.personal)
    document["decision"], written = _decision(origin, exchange, by.personal)
    beside |= written
    document["result"], told = ({}, {}) if end is None else _result(origin, by.salt, end)
    beside |= told
    if exchange.findings:
        document["safety"] = [_finding(finding) for finding in exchange.findings]
    document["content"] = _content(origin, by.salt, stage, None if end is None else end.response_digest)
    if sealed:
        document["content"]["sealed"] = digests(sealed)
    if phase != "intent" and end is not None:
        document["usage"] = _usage(end)
        if end.signals is not None:
            document["engine"] = _signals(end.signals)
    timings = exchange.timings
    document["timing"] = filled(
        {
            "auth_us": timings.auth_us,
            "policy_us": timings.policy_us,
            "limits_us": timings.limits_us,
            "guard_us": timings.guard_us,
            "route_us": timings.route_us,
            "audit_us": timings.audit_us,
            "ttft_us": timings.ttft_us,
            "total_us": timings.total_us,
        }
    )
    side = by.side if len(beside) == len(by.personal) else encode_side(beside, by.salt)
    return finish(event_id, document, with_contents(side, sealed))


def _result(origin: Origin, salt: bytes, end: Concluded) -> tuple[dict[str, Any], dict[str, Any]]:
    """How it ended, and what of it goes beside the record."""
    result = {
        "status": end.status,
        "outcome": end.outcome.value,
        "finish_reason": end.finish_reason,
        "stop_cause": end.stop_cause,
        "tool_calls": end.tool_calls or None,
    }
    beside: dict[str, Any] = {}
    if end.failure is not None:
        result["error_code"] = end.failure.code
        if end.failure.detail is not None:
            # It may repeat what a caller or another server sent.
            detail = storable_json(text(end.failure.detail))
            result["detail_commit"] = commitment(origin.key, salt, "error_detail", detail)
            beside["error_detail"] = detail
    return filled(result), beside


def effect(exchange: Exchange) -> Literal["allow", "deny", "error"]:
    """How the whole request was decided, as `GatewayError.denies` has decided its outcome: `deny` where that is
    `denied`, `error` where something else kept it from being served."""
    outcome = exchange.outcome if isinstance(exchange, Concluded) else Outcome.OK
    if outcome is Outcome.DENIED:
        return "deny"
    return "error" if outcome in (Outcome.ERROR, Outcome.ENGINE_ERROR) else "allow"


def _what(stage: Received, signals: Signals | None, hidden: Container[str]) -> dict[str, Any]:
    """`hidden`: names of the values that stand beside the record."""
    context, request, plan, served = stage.context, request_of(stage), plan_of(stage), served_of(stage)
    what: dict[str, Any] = {
        "data_class": HIDDEN if "data_class" in hidden else context.data_class,
        "purpose": HIDDEN if "purpose" in hidden else text(context.purpose, 256),
    }
    if request is not None:
        params = request.params
        what |= {
            "action": request.action,
            "stream": request.stream,
            "model_requested": HIDDEN if "model_requested" in hidden else text(request.model, 256),
            "messages": _messages(request),
            "tools": (len(request.tools) or None) if isinstance(request, ChatRequest) else None,
            "params": filled(
                {
                    "max_tokens": exact(params.max_tokens),
                    "temperature": exact(params.temperature),
                    "top_p": exact(params.top_p),
                    "top_k": exact(params.top_k),
                    "seed": exact(params.seed),
                    "n": exact(params.n),
                    "grammar": None if params.grammar is None else text(str(params.grammar.get("type")), 32),
                }
            ),
        }
    if plan is not None:
        what["model_resolved"] = plan.target.id
    if served is not None:
        what["model_served"] = served.id
    if signals is not None:
        what["model_sha256"] = signals.model_sha256
        what["kernels_sha256"] = signals.kernels_sha256
    return filled(what)


def _messages(request: ModelRequest) -> int:
    match request:
        case ChatRequest(messages=turns):
            return len(turns) or 1
        case EmbeddingRequest(inputs=inputs):
            return len(inputs) or 1
        case CompletionRequest(prompts=prompts):
            return len(prompts) or 1


def _decision(origin: Origin, exchange: Exchange, hidden: Container[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The decision, and what an administrator wrote of it, to go beside the record."""
    stage, verdict = stage_of(exchange), effect(exchange)
    decision, plan = decision_of(stage), plan_of(stage)
    document: dict[str, Any] = {"effect": verdict}
    beside: dict[str, Any] = {}
    if verdict == "deny" and isinstance(exchange, Concluded) and exchange.failure is not None:
        document["deny_code"] = exchange.failure.code
    if decision is not None:
        document |= _policy(decision)
        stated = HIDDEN if "data_class" in hidden else stage.context.data_class
        document["data_class"] = stated or decision.default_data_class
        if not decision.fixed_reason:
            beside, document["commit"] = about(origin.key, {"policy_reason": text(decision.reason, 256)})
    if plan is not None:
        document |= {
            "route": plan.route,
            "route_reason": text(plan.reason, 256),
            "route_score_micro": micro(plan.score),
            "router_version": plan.router_version,
            "candidates": [card.id for card in plan.candidates],
        }
    if isinstance(stage, Routed) and stage.fallbacks:
        document["fallbacks"] = list(stage.fallbacks)
    reservation = exchange.claim if isinstance(exchange, Concluded) else exchange.reservation
    if reservation is not None:
        document["reservation"] = filled(
            {
                "tokens": reservation.tokens,
                "cost_micro": reservation.cost_micro,
                "granted_output_tokens": reservation.granted_output_tokens,
                "clamped_by": reservation.clamped_by,
                "degraded": reservation.degraded or None,
                "warnings": list(reservation.warnings) or None,
                "store": reservation.store,
            }
        )
    return filled(document), beside


def _policy(decision: Decision) -> dict[str, Any]:
    duties = decision.obligations
    return {
        "policy_version": decision.policy_version,
        "policy_sha256": decision.policy_sha256,
        "rule_id": decision.rule_id,
        "matched": list(decision.matched) or None,
        "policy_effect": decision.effect.value,
        "policy_reason": text(decision.reason, 256) if decision.fixed_reason else HIDDEN,
        "obligations": filled(
            {
                "max_output_tokens": duties.max_output_tokens,
                "default_output_tokens": duties.default_output_tokens,
                "repetition_guard": None if duties.repetition_guard == "off" else duties.repetition_guard,
                "content_logging": duties.content_logging,
                "redaction": duties.redaction,
                "guardrails": duties.guardrails,
                "require_locality": duties.require_locality,
                "tools": None if duties.tools == "allowed" else duties.tools,
                "response_store_days": duties.response_store_days or None,
                "priority": duties.priority,
            }
        ),
    }


def content_level(stage: Received) -> str:
    decision = decision_of(stage)
    return "hash" if decision is None else decision.obligations.content_logging


def _content(origin: Origin, salt: bytes, stage: Received, response: bytes | None) -> dict[str, Any]:
    level = content_level(stage)
    document: dict[str, Any] = {"level": level}
    if level != "none":
        prompt = stage.prompt_digest if isinstance(stage, Read) else None
        for name, digest in (("prompt", prompt), ("response", response)):
            if digest is not None:
                document[f"{name}_commit"] = origin.key.commit(salt, name, digest)
    return document


def _usage(end: Concluded) -> dict[str, Any]:
    usage, served = end.usage, served_of(end.stage)
    document: dict[str, Any] = {
        "tokens_in": usage.prompt_tokens,
        "tokens_out": usage.completion_tokens,
        "tokens_cached": usage.cached_tokens,
        "source": usage.source,
        "cost_micro": end.cost_micro,
    }
    if usage.reasoning_tokens:
        document["tokens_reasoning"] = usage.reasoning_tokens
    if served is not None:
        document["currency"] = served.currency
    return document


def _signals(signals: Signals) -> dict[str, Any]:
    return filled(
        {
            "mean_logprob_micro": micro(signals.mean_logprob),
            "min_logprob_micro": micro(signals.min_logprob),
            "first_entropy_micro": micro(signals.first_entropy),
            "repetition": signals.repetition or None,
            "queue_us": micro(signals.queue_s),
            "prefill_us": micro(signals.prefill_s),
            "decode_us": micro(signals.decode_s),
            "cached_tokens": signals.cached_tokens,
            "preemptions": signals.preemptions,
        }
    )


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "detector": text(finding.detector, 128),
        "category": text(finding.category, 128),
        "count": finding.count,
        "action": finding.action,
        "direction": finding.direction,
        "where": finding.where,
        "score_micro": micro(finding.score),
    }
