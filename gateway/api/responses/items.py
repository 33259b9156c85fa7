"""The items of `input`: messages, calls of tools with their results, what a model has reasoned, references to stored
items. OpenAI's names.

Clients send back what they were given, by this server or another: fields that only tell about an earlier answer are
left out; an item or a content that no model here takes is refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict, Discriminator, Field, Tag, TypeAdapter, ValidationError

from gateway.api.bounds import FewFields, Text
from gateway.api.chat_messages import CallId
from gateway.api.http.errors import refusal_of
from gateway.api.tool_params import FunctionName

MAX_ITEMS = 4096
MAX_PARTS = 256
ItemId = Annotated[str, Field(max_length=256)]


class Known(FewFields):
    """Of an item, what is read here."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, hide_input_in_errors=True)


class TextContent(Known):
    type: Literal["input_text", "output_text", "text"]
    text: Text


class RefusalContent(Known):
    type: Literal["refusal"]
    refusal: Text


class OtherContent(Known):
    """Recognized only to refuse it with the right reason."""

    type: Annotated[str, Field(max_length=64)]
    image_url: Any = None
    file_url: Any = None


def _content_kind(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else getattr(part, "type", None)
    if kind in ("input_text", "output_text", "text"):
        return "TextContent"
    return "RefusalContent" if kind == "refusal" else "OtherContent"


ContentPart = Annotated[
    Annotated[TextContent, Tag("TextContent")]
    | Annotated[RefusalContent, Tag("RefusalContent")]
    | Annotated[OtherContent, Tag("OtherContent")],
    Discriminator(_content_kind),
]
Parts = Annotated[list[ContentPart], Field(max_length=MAX_PARTS, fail_fast=True)]


class MessageItem(Known):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Text | Parts
    id: ItemId | None = None


class CallItem(Known):
    type: Literal["function_call"]
    call_id: CallId
    name: FunctionName
    arguments: Text
    """JSON, as the model wrote it."""
    id: ItemId | None = None


class CallOutputItem(Known):
    type: Literal["function_call_output"]
    call_id: CallId
    output: Text | Parts
    id: ItemId | None = None


class ReasoningText(Known):
    type: Literal["reasoning_text", "text"]
    text: Text


class ReasoningItem(Known):
    """A summary is not what the model thought, and what is encrypted only its maker can read: both are left out."""

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningText], Field(max_length=MAX_PARTS, fail_fast=True)] | None = None
    id: ItemId | None = None


class ReferenceItem(Known):
    """A stored item of the caller's own, by its id."""

    type: Literal["item_reference"] = "item_reference"
    id: Annotated[str, Field(min_length=1, max_length=256)]


class OtherItem(Known):
    """Recognized only to refuse it by name."""

    type: Annotated[str, Field(max_length=64)]


_KINDS = {
    "message": "MessageItem",
    "function_call": "CallItem",
    "function_call_output": "CallOutputItem",
    "reasoning": "ReasoningItem",
    "item_reference": "ReferenceItem",
}


def _item_kind(item: Any) -> str:
    """The type may be left out of a message, and of a reference."""
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
    if kind is None:
        refers = isinstance(item, dict) and "id" in item and "role" not in item
        return "ReferenceItem" if refers else "MessageItem"
    return _KINDS.get(kind, "OtherItem") if isinstance(kind, str) else "OtherItem"


Item: TypeAlias = MessageItem | CallItem | CallOutputItem | ReasoningItem | ReferenceItem | OtherItem
AnyItem = Annotated[
    Annotated[MessageItem, Tag("MessageItem")]
    | Annotated[CallItem, Tag("CallItem")]
    | Annotated[CallOutputItem, Tag("CallOutputItem")]
    | Annotated[ReasoningItem, Tag("ReasoningItem")]
    | Annotated[ReferenceItem, Tag("ReferenceItem")]
    | Annotated[OtherItem, Tag("OtherItem")],
    Discriminator(_item_kind),
]
Items = Annotated[list[AnyItem], Field(max_length=MAX_ITEMS, fail_fast=True)]
_ITEMS: TypeAdapter[list[Item]] = TypeAdapter(Items)


def parse_items(value: object) -> tuple[Item, ...]:
    """Raises `InvalidRequest`."""
    try:
        return tuple(_ITEMS.validate_python(value))
    except ValidationError as error:
        raise refusal_of(error) from None
