"""Turns negative decisions and findings into `GatewayError`. Pure; knows no domain."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.documents.near_names import near
from gateway.errors import BlockedByPolicy, GatewayError, InvalidRequest, NotFound, NotPermitted, Unavailable
from gateway.flow.values import ChatRequest, Decision, Inspection, ModelCard, ModelRequest


def permits(decision: Decision, request: ModelRequest) -> bool:
    """Whether policy lets this request run so, tools included."""
    return decision.allowed and not (decision.obligations.tools == "denied" and offers_tools(request))


def require_permitted(
    decision: Decision, request: ModelRequest, visible: Callable[[], Sequence[ModelCard]] = tuple
) -> None:
    """Raises `NotPermitted` (403), or `NotFound` (404) where the policy hides models; `visible`: what the caller may
    see instead."""
    if not decision.allowed:
        if decision.hidden:
            raise unknown_model(near_names(request.model, visible()))
        raise NotPermitted(
            f"You may not use this model: {decision.reason}",
            code="model_not_permitted",
            param="model",
            hint=decision.hint or "GET /v1/models lists what you may use",
            detail=None if decision.rule_id is None else f"rule {decision.rule_id}",
        )
    if not permits(decision, request):
        raise NotPermitted(
            "Policy does not let you offer tools to this model.",
            code="tools_not_permitted",
            param="tools",
            hint="leave `tools` out, or ask your administrator",
        )


def require_served(request: ModelRequest, card: ModelCard) -> None:
    """Raises `InvalidRequest` for what this model does for nobody. The router chooses among those that can."""
    if card.virtual:
        return
    if request.needs not in card.actions:
        raise InvalidRequest(
            f"This model does not serve {request.needs}.",
            code="unsupported_action",
            param="model",
            hint="GET /v1/models lists what each model serves",
        )
    if not may_serve_tools(request, card):
        raise no_tools("This model calls no tools.")


def may_serve_tools(request: ModelRequest, card: ModelCard) -> bool:
    return card.tools or not offers_tools(request)


def offers_tools(request: ModelRequest) -> bool:
    return isinstance(request, ChatRequest) and request.offers_tools


def no_tools(message: str) -> InvalidRequest:
    return InvalidRequest(
        message,
        code="unsupported_parameter",
        param="tools",
        hint="use a model that calls tools (GET /v1/models), or ask for the arguments with `response_format`",
    )


def require_clean(inspection: Inspection | None) -> None:
    """Raises `BlockedByPolicy` (400) with the category, never with the matched text."""
    if inspection is not None and inspection.action == "block":
        category = next((found.category for found in inspection.findings if found.action == "block"), None)
        raise blocked(category, "The content was blocked by policy.")


def blocked(category: str | None, message: str) -> BlockedByPolicy:
    return BlockedByPolicy(message, param=category, hint="`param` names what was found; leave it out and ask again")


def require_no_logprobs(request: ModelRequest, decision: Decision) -> None:
    """Log-probabilities name every token, so they would show what is taken out of the answer."""
    if request.params.logprobs and decision.obligations.redaction in ("redact", "block"):
        raise InvalidRequest(
            "Policy has answers of this model redacted; log-probabilities would show what was taken out.",
            code="unsupported_parameter",
            param="logprobs",
            hint="leave `logprobs` out",
        )


def require_inspector(decision: Decision) -> None:
    """No inspector is configured: an obligation that needs one refuses instead of being forgotten."""
    if decision.obligations.redaction in ("redact", "block") or decision.obligations.guardrails == "strict":
        raise Unavailable(
            "Policy asks for content inspection, and no inspector is configured.",
            code="guardrails_unavailable",
            hint="configure guardrails or change the obligation",
        )


def costs_work(error: GatewayError) -> bool:
    """Whether a refusal counts as a request of the limits: the body was read, or a text inspected, for nothing. What a
    limit itself refused does not, nor what the gateway could not do."""
    return error.code == "guardrails_unavailable" or (400 <= error.status < 500 and error.status not in (401, 429))


def unknown_model(names: Sequence[str] = ()) -> NotFound:
    """One text for unknown and hidden, so that nobody can tell them apart. `names`: near ones that they may see."""
    listed = "GET /v1/models lists what you may use"
    return NotFound(
        "This model does not exist, or you may not see it.",
        code="model_not_found",
        param="model",
        hint=f"did you mean {' or '.join(f'`{name}`' for name in names)}? {listed}" if names else listed,
    )


def near_names(asked: str, cards: Sequence[ModelCard]) -> list[str]:
    """At most two of the cards, for a name in another case, behind a vendor's prefix or misspelled."""
    name = asked[:256]
    return near(name.rpartition("/")[2] or name, [card.id for card in cards])
