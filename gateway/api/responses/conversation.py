"""Items become the messages that every chat has, and messages become items again, as they are stored. Pure.

What an assistant did between two turns of others is one message: chat templates want it so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gateway.api.responses.items import (
    CallItem,
    CallOutputItem,
    Item,
    MessageItem,
    OtherContent,
    OtherItem,
    ReasoningItem,
    ReferenceItem,
    RefusalContent,
    TextContent,
)
from gateway.errors import InvalidRequest
from gateway.flow.parts import Content, Part, ReasoningPart, RefusalPart, TextPart, ToolCallPart, ToolResultPart
from gateway.flow.values import Message


def messages_of(items: Sequence[Item], known_calls: frozenset[str] = frozenset()) -> tuple[Message, ...]:
    """Raises `InvalidRequest` naming the item for what no model here takes, and for a result of a call that is neither
    known nor made before. References are resolved already."""
    found, said, calls = list[Message](), list[Part](), set(known_calls)
    for index, item in enumerate(items):
        where = f"input.{index}"
        match item:
            case MessageItem(role="assistant"):
                said += _said(item, where)
            case ReasoningItem():
                thought = "".join([part.text for part in item.content or ()])
                said += [ReasoningPart(thought)] if thought else []
            case CallItem():
                said.append(ToolCallPart(item.call_id, item.name, item.arguments))
                calls.add(item.call_id)
            case MessageItem():
                _close(found, said)
                found.append(Message.of_text(item.role, _text(item.content, f"{where}.content")))
            case CallOutputItem():
                _close(found, said)
                if item.call_id not in calls:
                    raise InvalidRequest(
                        "A `function_call_output` answers a call that no earlier item has made.",
                        code="invalid_value",
                        param=f"{where}.call_id",
                        hint="send the `function_call` item before it, or name its response as `previous_response_id`",
                    )
                result = ToolResultPart(item.call_id, _text(item.output, f"{where}.output"))
                found.append(Message("tool", (result,)))
            case ReferenceItem():
                raise unknown_reference(where)
            case OtherItem():
                raise InvalidRequest(
                    f"Items of type `{_shown(item.type)}` are not served.",
                    code="unsupported_parameter",
                    param=f"{where}.type",
                    hint="send messages, `function_call`, `function_call_output` and `reasoning` items",
                )
    _close(found, said)
    return tuple(found)


def calls_of(messages: Iterable[Message]) -> frozenset[str]:
    """The ids of the calls that are made in them."""
    return frozenset(part.call_id for message in messages for part in message.content if isinstance(part, ToolCallPart))


def unknown_reference(where: str) -> InvalidRequest:
    return InvalidRequest(
        "There is no stored item with this id.",
        code="item_not_found",
        param=f"{where}.id",
        hint="send the item itself; set `store` to false in clients that send references",
    )


def _close(found: list[Message], said: list[Part]) -> None:
    if said:
        found.append(Message("assistant", _joined(said)))
        said.clear()


def _joined(parts: Iterable[Part]) -> Content:
    """Texts that follow each other are one part."""
    joined = list[Part]()
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, TextPart) and isinstance(last, TextPart):
            joined[-1] = TextPart(f"{last.text}\n{part.text}")
        else:
            joined.append(part)
    return tuple(joined)


def _said(item: MessageItem, where: str) -> list[Part]:
    if isinstance(item.content, str):
        return [TextPart(item.content)]
    parts = list[Part]()
    for index, part in enumerate(item.content):
        match part:
            case TextContent():
                parts.append(TextPart(part.text))
            case RefusalContent():
                parts.append(RefusalPart(part.refusal))
            case OtherContent():
                raise _unserved(part, f"{where}.content.{index}")
    return parts


def _text(content: str | Sequence[Any], where: str) -> str:
    """The texts, each on a line of its own."""
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        if isinstance(part, RefusalContent):
            raise InvalidRequest("Only an assistant refuses.", code="invalid_value", param=f"{where}.{index}.type")
        if isinstance(part, OtherContent):
            raise _unserved(part, f"{where}.{index}")
        texts.append(part.text)
    return "\n".join(texts)


def _unserved(part: OtherContent, where: str) -> InvalidRequest:
    """A URL is named as such: nothing is ever fetched for a caller (T22)."""
    address = part.image_url if isinstance(part.image_url, str) else part.file_url
    if isinstance(address, str) and not address.startswith("data:"):
        return InvalidRequest(
            f"Content of type `{_shown(part.type)}` is not supported, and the gateway fetches no URLs.",
            code="url_not_allowed",
            param=where,
            hint="send text",
        )
    return InvalidRequest(
        f"No model here takes content of type `{_shown(part.type)}`.",
        code="unsupported_parameter",
        param=where,
        hint="send text",
    )


def _shown(kind: str) -> str:
    return kind if kind.replace("_", "").isalnum() else "(an unknown type)"


def input_items(messages: Sequence[Message], item_id: ItemIds) -> list[dict[str, Any]]:
    """The items that these messages are, as `input_items` lists them."""
    items = list[dict[str, Any]]()
    for message in messages:
        if message.role in ("user", "system", "developer"):
            content = [{"type": "input_text", "text": text} for text in message.texts]
            item = {"type": "message", "role": message.role, "content": content, "status": "completed"}
            items.append({"id": item_id("msg", len(items)), **item})
            continue
        items += output_items(message.content, item_id, start=len(items))
    return items


class ItemIds:
    """Ids of the items of one response: its own id, and where the item stands. A reference finds its response so."""

    def __init__(self, response: str, *, given: bool = False) -> None:
        self._response, self._first = response, GIVEN if given else 0

    def __call__(self, prefix: str, index: int) -> str:
        return f"{prefix}_{self._response}{self._first + index:04x}"


GIVEN = 0x8000
"""Items of the input are numbered from here."""


def output_items(
    content: Content, item_id: ItemIds, *, start: int = 0, status: str = "completed"
) -> list[dict[str, Any]]:
    """The items that the parts of an assistant's message are. Texts and refusals in a row share a message."""
    items = list[dict[str, Any]]()
    for part in content:
        at, last = start + len(items), items[-1] if items else None
        match part:
            case TextPart() | RefusalPart():
                if last is None or last["type"] != "message":
                    items.append(message_item(item_id("msg", at), status))
                items[-1]["content"].append(content_part(part))
            case ReasoningPart(text=text):
                thought = {"type": "reasoning_text", "text": text}
                items.append({**reasoning_item(item_id("rs", at), status), "content": [thought]})
            case ToolCallPart():
                items.append(call_item(item_id("fc", at), part.call_id, part.name, part.arguments, status))
            case ToolResultPart():
                items.append(
                    {
                        "id": item_id("fco", at),
                        "type": "function_call_output",
                        "call_id": part.call_id,
                        "output": part.text,
                        "status": "completed",
                    }
                )
    return items


def message_item(item_id: str, status: str) -> dict[str, Any]:
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": []}


def reasoning_item(item_id: str, status: str) -> dict[str, Any]:
    return {"id": item_id, "type": "reasoning", "status": status, "summary": [], "content": []}


def call_item(item_id: str, call_id: str, name: str, arguments: str, status: str) -> dict[str, Any]:
    return {
        "id": item_id,
        "type": "function_call",
        "status": status,
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
    }


def content_part(part: TextPart | RefusalPart, logprobs: Sequence[Any] = ()) -> dict[str, Any]:
    if isinstance(part, RefusalPart):
        return {"type": "refusal", "refusal": part.text}
    return {"type": "output_text", "annotations": [], "logprobs": list(logprobs), "text": part.text}
