"""`GET /v1/models` and `/v1/models/{id}`: what this caller may use, nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request

from gateway.api.answers import ModelList, ModelObject
from gateway.api.anthropic.answers import ModelInfo, ModelPage
from gateway.api.anthropic.dialect import ANTHROPIC
from gateway.api.anthropic.model_list import chat_models, model_info, page
from gateway.api.http.dialects import dialect_in
from gateway.flow.context import RequestContext
from gateway.flow.ports import Authorizer
from gateway.flow.refusals import unknown_model
from gateway.flow.values import ModelCard, Principal


def routes(identify: Callable[[Request], Awaitable[Principal]], authorizer: Authorizer) -> APIRouter:
    """`identify` verifies the caller and puts refusals on record."""
    router = APIRouter(tags=["models"])

    async def visible(request: Request) -> tuple[ModelCard, ...]:
        context: RequestContext = request.scope["state"]["context"]
        return authorizer.visible_models(await identify(request), context)

    @router.get(
        "/v1/models",
        summary="The models you may use; in Anthropic's form where `anthropic-version` is sent",
        responses={200: {"model": ModelList | ModelPage}},
    )
    async def list_models(request: Request) -> dict[str, Any]:
        cards = await visible(request)
        if dialect_in(request.scope) is ANTHROPIC:
            return page(cards, request.query_params)
        return {"object": "list", "data": [model_object(card) for card in cards]}

    @router.get(
        "/v1/models/{model_id:path}",
        summary="One model you may use",
        responses={200: {"model": ModelObject | ModelInfo}},
    )
    async def one_model(request: Request, model_id: str) -> dict[str, Any]:
        anthropic = dialect_in(request.scope) is ANTHROPIC
        cards = await visible(request)
        for card in chat_models(cards) if anthropic else cards:
            if card.id == model_id:
                return model_info(card) if anthropic else model_object(card)
        raise unknown_model()

    return router


def model_object(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": card.owned_by,
        "x_esclusa": {
            "tier": card.tier,
            "virtual": card.virtual,
            "context_window": card.context_window,
            "actions": list(card.actions),
            "tools": card.tools,
        },
    }
