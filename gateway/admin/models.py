"""`/admin/v1/models`: the whole catalog with tiers, labels and prices. Permission `models.read`."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from gateway.access.history.service import AccessService
from gateway.admin.bodies import Page
from gateway.admin.guard import PermissionGuard
from gateway.errors import NotFound
from gateway.flow.values import ModelCard


class ModelView(BaseModel):
    object: Literal["catalog.model"] = "catalog.model"
    id: str
    backend: str
    tier: Literal["small", "large"] | None
    virtual: bool = Field(description="a name that only the router turns into a real model")
    labels: dict[str, str]
    actions: list[str]
    tools: bool = Field(description="whether it calls tools")
    context_window: int
    max_output_tokens: int | None
    price_in_micro: int = Field(description="micro-units of `currency` per million prompt tokens")
    price_out_micro: int = Field(description="micro-units of `currency` per million output tokens")
    currency: str
    owned_by: str
    granted_by: list[str] = Field(description="allow rules of the policy in force whose models include this one")


class ModelPage(Page):
    data: list[ModelView]


def routes(service: AccessService, guard: PermissionGuard) -> APIRouter:
    router = APIRouter(prefix="/admin/v1", tags=["models"])
    may_read = Depends(guard.require("models.read"))

    @router.get("/models", summary="The model catalog", response_model=ModelPage, dependencies=[may_read])
    async def models() -> ModelPage:
        cards = service.catalog
        return ModelPage(data=[_view(service, card) for card in cards], total=len(cards))

    @router.get(
        "/models/{model_id:path}",
        summary="One model of the catalog",
        response_model=ModelView,
        dependencies=[may_read],
    )
    async def model(model_id: str) -> ModelView:
        return _view(service, card_of(service, model_id, "model_id"))

    return router


def card_of(service: AccessService, model_id: str, param: str) -> ModelCard:
    """Raises `NotFound` (404 `model_not_found`), which names `param`."""
    for card in service.catalog:
        if card.id == model_id:
            return card
    raise NotFound("There is no such model in the catalog.", code="model_not_found", param=param)


def _view(service: AccessService, card: ModelCard) -> ModelView:
    snapshot = service.snapshot
    granting = snapshot.by_model[card.id] & ~snapshot.denies
    return ModelView(
        id=card.id,
        backend=card.backend,
        tier=card.tier,
        virtual=card.virtual,
        labels=dict(card.labels),
        actions=list(card.actions),
        tools=card.tools,
        context_window=card.context_window,
        max_output_tokens=card.max_output_tokens,
        price_in_micro=card.price_in_micro,
        price_out_micro=card.price_out_micro,
        currency=card.currency,
        owned_by=card.owned_by,
        granted_by=[rule.id for rule in snapshot.rules if granting >> rule.number & 1],
    )
