"""A request for a response: a chat with what only this API has beside it. Frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gateway.api.responses.items import Item
from gateway.flow.values import Action, ChatRequest


@dataclass(frozen=True, slots=True)
class ResponseParams:
    """What the answer repeats, and what concerns the store. No text that a model reads is in it: guardrails rewrite
    those of the request."""

    store: bool = True
    previous_response_id: str | None = None
    conversation: str | None = None
    instructed: bool = False
    """The first message is the `instructions`."""
    before: int = 0
    """Messages before those of `input`: instructions and history."""
    items: tuple[Item, ...] | None = field(default=None, repr=False)
    """The input, where messages can be made of it only with what is stored."""
    instructions: str | None = field(default=None, repr=False)
    """Only beside `items`."""
    echo: Mapping[str, Any] = field(default_factory=dict)
    """Parameters as the answer repeats them."""


@dataclass(frozen=True, slots=True)
class ResponsesRequest(ChatRequest):
    prompt_param: ClassVar[str] = "input"

    asked: ResponseParams = ResponseParams()


@dataclass(frozen=True, slots=True)
class ResponsesCount(ResponsesRequest):
    """How many tokens the prompt of a response would have."""

    action: ClassVar[Action] = "tokenize"
    runs: ClassVar[bool] = False
