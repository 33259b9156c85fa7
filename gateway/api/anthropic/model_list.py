"""The models of `GET /v1/models` in Anthropic's shape, for clients that send `anthropic-version`. Pure.

Only those that a message can be sent to are in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from gateway.errors import InvalidRequest
from gateway.flow.values import ModelCard

PAGE = 20
MOST = 1000


def chat_models(cards: Sequence[ModelCard]) -> list[ModelCard]:
    return [card for card in cards if "chat" in card.actions]


def model_info(card: ModelCard) -> dict[str, Any]:
    """`created_at` is the epoch where nobody knows when a model was made, as Anthropic writes it."""
    return {
        "type": "model",
        "id": card.id,
        "display_name": card.id,
        "created_at": f"{datetime.fromtimestamp(card.created, UTC):%Y-%m-%dT%H:%M:%SZ}",
        "lifecycle": "active",
        "max_input_tokens": card.context_window,
        "max_tokens": card.max_output_tokens or card.context_window,
    }


def page(cards: Sequence[ModelCard], query: Mapping[str, str]) -> dict[str, Any]:
    """One page of them, by Anthropic's `limit`, `after_id` and `before_id`. Raises `InvalidRequest`."""
    found, limit = chat_models(cards), _limit(query.get("limit"))
    before = "before_id" in query
    if before:
        found = found[: _place(found, query["before_id"])]
    elif "after_id" in query:
        found = found[_place(found, query["after_id"]) + 1 :]
    shown = found[-limit:] if before else found[:limit]
    return {
        "data": [model_info(card) for card in shown],
        "has_more": len(found) > len(shown),
        "first_id": shown[0].id if shown else None,
        "last_id": shown[-1].id if shown else None,
    }


def _limit(text: str | None) -> int:
    if text is None:
        return PAGE
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= MOST):
        raise InvalidRequest(f"`limit` must be between 1 and {MOST}.", code="invalid_value", param="limit")
    return int(text)


def _place(cards: Sequence[ModelCard], model_id: str) -> int:
    place = next((number for number, card in enumerate(cards) if card.id == model_id), None)
    if place is None:
        raise InvalidRequest("The model to page from is not in the list.", code="invalid_value", param="after_id")
    return place
