"""`GET /v1/models` and `/v1/models/{id}`: what this caller may use, nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request

from gateway.api.answers import ModelList, ModelObject
from gateway.api.anthropic.answers import AnthropicModelPage, ModelInfo
from gateway.api.anthropic.dialect import ANTHROPIC
from gateway.api.anthropic.model_list import chat_models, model_info, page
from gateway.api.http.dialects import dialect_in
from gateway.flow.context import RequestContext
from gateway.flow.ports import Authorizer
from gateway.flow.refusals import near_names, unknown_model
from gateway.flow.values import ModelCard, Obligations, Principal


@dataclass(frozen=True, slots=True)
class Seen:
    """The models that a caller sees."""

    authorizer: Authorizer
    principal: Principal
    context: RequestContext
    cards: tuple[ModelCard, ...]

    def shown(self, card: ModelCard) -> dict[str, Any]:
        decisions = [
            self.authorizer.decide(self.principal, action, card, self.context)
            for action in card.actions
            if action in ("chat", "completions", "embeddings", "moderations")
        ]
        allowed = next((decision for decision in decisions if decision.allowed), None)
        return model_object(card, Obligations() if allowed is None else allowed.obligations, self.cards)


def routes(identify: Callable[[Request], Awaitable[Principal]], authorizer: Authorizer) -> APIRouter:
    """`identify` verifies the caller and puts refusals on record."""
    router = APIRouter(tags=["models"])

    async def visible(request: Request) -> Seen:
        context: RequestContext = request.scope["state"]["context"]
        principal = await identify(request)
        return Seen(authorizer, principal, context, authorizer.visible_models(principal, context))

    @router.get(
        "/v1/models",
        summary="The models you may use; in Anthropic's form where `anthropic-version` is sent",
        responses={200: {"model": ModelList | AnthropicModelPage}},
    )
    async def list_models(request: Request) -> dict[str, Any]:
        seen = await visible(request)
        if dialect_in(request.scope) is ANTHROPIC:
            return page(seen.cards, request.query_params)
        return {"object": "list", "data": [seen.shown(card) for card in seen.cards]}

    @router.get(
        "/v1/models/",
        include_in_schema=False,
    )
    async def list_models_too(request: Request) -> dict[str, Any]:
        """Some clients join paths with a slash too many."""
        return await list_models(request)

    @router.get(
        "/v1/models/{model_id:path}",
        summary="One model you may use",
        responses={200: {"model": ModelObject | ModelInfo}},
    )
    async def one_model(request: Request, model_id: str) -> dict[str, Any]:
        anthropic = dialect_in(request.scope) is ANTHROPIC
        seen = await visible(request)
        cards = chat_models(seen.cards) if anthropic else seen.cards
        for card in cards:
            if card.id == model_id:
                return model_info(card) if anthropic else seen.shown(card)
        raise unknown_model(near_names(model_id, cards))

    return router


def model_object(card: ModelCard, obligations: Obligations, seen: Sequence[ModelCard]) -> dict[str, Any]:
    """`obligations`: what holds for this caller; `seen`: the cards that the caller sees."""
    caps = (card.context_window, card.max_output_tokens, obligations.max_output_tokens)
    generates = any(action in card.actions for action in ("chat", "completions"))
    lengths = [card.default_max_tokens, obligations.default_output_tokens]
    extension: dict[str, Any] = {
        "tier": card.tier,
        "virtual": card.virtual,
        "context_window": card.context_window,
        "actions": list(card.actions),
        "tools": card.tools,
        "default_output_tokens": min([length for length in lengths if length is not None], default=None),
    }
    if card.virtual:
        extension["resolves_to"] = [other.id for other in seen if other.tier is not None]
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": card.owned_by,
        "max_model_len": card.context_window,
        "context_length": card.context_window,
        "max_output_tokens": min([cap for cap in caps if cap is not None]) if generates else 0,
        "capabilities": {
            "chat": "chat" in card.actions,
            "completions": "completions" in card.actions,
            "embeddings": "embeddings" in card.actions,
            "moderations": "moderations" in card.actions,
            "tools": card.tools and "chat" in card.actions and obligations.tools == "allowed",
            "json_schema": generates,
            "logprobs": generates and obligations.redaction not in ("redact", "block"),
            "vision": False,
            "audio": False,
        },
        "languages": list(card.languages),
        "sampling_defaults": dict(card.sampling) if generates else {},
        "pricing": {
            "currency": card.currency,
            "prompt_micro": card.price_in_micro,
            "completion_micro": card.price_out_micro,
        },
        "x_esclusa": extension,
    }
