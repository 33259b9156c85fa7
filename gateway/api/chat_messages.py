"""The messages of a chat's body become parts: texts, calls and results of tools, refusals, what a model has reasoned.

Histories come from other servers and frameworks: fields that only tell about an earlier answer are accepted and left
out; what a model would have to see or hear is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from gateway.api.bounds import FewFields, JsonObject, Text
from gateway.api.structured import Strict
from gateway.api.tool_params import FunctionName
from gateway.errors import InvalidRequest
from gateway.flow.parts import Part, ReasoningPart, RefusalPart, TextPart, ToolCallPart, ToolResultPart
from gateway.flow.values import Message

MAX_PARTS = 256
MAX_CALLS = 128
CallId = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[\x21-\x7e]+$")]
Ignored = Annotated[list[Any], Field(max_length=1024)]
"""What an earlier answer told about itself."""
MEDIA = ("image_url", "input_audio", "file", "video_url", "audio_url")


class TextContent(Strict):
    type: Literal["text"]
    text: Text
    cache_control: JsonObject | None = None
    annotations: Ignored | None = None


class RefusalContent(Strict):
    type: Literal["refusal"]
    refusal: Text


class MediaContent(Strict):
    """Recognized only to refuse it with the right reason."""

    type: Literal["image_url", "input_audio", "file", "video_url", "audio_url"]
    image_url: Any = None
    input_audio: Any = None
    file: Any = None
    video_url: Any = None
    audio_url: Any = None
    cache_control: JsonObject | None = None


class UnknownContent(FewFields):
    """The same for a type that nobody knows."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def _kind(part: Any) -> str | None:
    if not isinstance(part, dict):
        return "text"
    kind = part.get("type")
    if not isinstance(kind, str):
        return "text"
    return "media" if kind in MEDIA else kind if kind in ("text", "refusal") else "unknown"


Content = Annotated[
    Annotated[TextContent, Tag("text")]
    | Annotated[RefusalContent, Tag("refusal")]
    | Annotated[MediaContent, Tag("media")]
    | Annotated[UnknownContent, Tag("unknown")],
    Discriminator(_kind),
]


class CalledFunction(Strict):
    name: FunctionName
    arguments: Text
    """JSON, as the model wrote it."""


class CallMade(Strict):
    id: CallId
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None
    """Of a stream's delta; of no effect."""


class ChatMessage(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | Annotated[list[Content], Field(max_length=MAX_PARTS, fail_fast=True)] | None = None
    name: Annotated[str, Field(max_length=64)] | None = None
    tool_calls: Annotated[list[CallMade], Field(max_length=MAX_CALLS, fail_fast=True)] | None = None
    tool_call_id: CallId | None = None
    refusal: Text | None = None
    reasoning_content: Text | None = None
    reasoning: Text | None = None
    """The same under another server's name."""
    annotations: Ignored | None = None
    reasoning_details: Ignored | None = None
    id: Annotated[str, Field(max_length=256)] | None = None
    cache_control: JsonObject | None = None

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, message: Any) -> Any:
        """SDKs send back an answer with all its empty fields."""
        if not isinstance(message, dict):
            return message
        return {name: value for name, value in message.items() if value is not None}


def messages_of(messages: Sequence[ChatMessage]) -> tuple[Message, ...]:
    """Raises `InvalidRequest` naming the message for content that no model here takes, and for a result of a call that
    nobody has made."""
    found, calls = list[Message](), set[str]()
    for index, message in enumerate(messages):
        param = f"messages.{index}"
        match message.role:
            case "assistant":
                parts = _assistant(message, param)
                calls |= {part.call_id for part in parts if isinstance(part, ToolCallPart)}
            case "tool":
                parts = _result(message, param, calls)
            case _:
                parts = (TextPart(_text(message, param)),)
                _require_absent(message, param)
        found.append(Message(message.role, parts, message.name))
    return tuple(found)


def _assistant(message: ChatMessage, param: str) -> tuple[Part, ...]:
    parts: list[Part] = []
    if thought := message.reasoning_content or message.reasoning:
        parts.append(ReasoningPart(thought))
    text = "" if message.content is None else _text(message, param)
    if text:
        parts.append(TextPart(text))
    refusals = [] if isinstance(message.content, str | None) else message.content
    refused = "\n".join([part.refusal for part in refusals if isinstance(part, RefusalContent)])
    if refused := refused or message.refusal or "":
        parts.append(RefusalPart(refused))
    for call in message.tool_calls or ():
        parts.append(ToolCallPart(call.id, call.function.name, call.function.arguments))
    return tuple(parts) or (TextPart(""),)


def _result(message: ChatMessage, param: str, calls: set[str]) -> tuple[Part, ...]:
    if message.tool_call_id is None:
        raise InvalidRequest(
            f"`{param}.tool_call_id` is required.", code="missing_required_parameter", param=f"{param}.tool_call_id"
        )
    if message.tool_call_id not in calls:
        raise InvalidRequest(
            "A message of role `tool` answers a call that no earlier message has made.",
            code="invalid_value",
            param=f"{param}.tool_call_id",
            hint="send the assistant's message with its `tool_calls` before it",
        )
    return (ToolResultPart(message.tool_call_id, _text(message, param)),)


def _text(message: ChatMessage, param: str) -> str:
    """The texts of the content, each on a line of its own."""
    content = message.content
    if content is None:
        raise InvalidRequest(
            f"`{param}.content` is required.", code="missing_required_parameter", param=f"{param}.content"
        )
    if isinstance(content, str):
        return content
    if not content and message.role != "assistant":
        raise InvalidRequest(
            f"`{param}.content` must have at least 1 entry.", code="invalid_value", param=f"{param}.content"
        )
    texts = []
    for index, part in enumerate(content):
        if isinstance(part, MediaContent):
            raise unserved_media(part, f"{param}.content.{index}")
        if isinstance(part, UnknownContent):
            raise InvalidRequest(
                f"`{param}.content.{index}.type` must be 'text', or 'refusal' of an assistant.",
                code="invalid_value",
                param=f"{param}.content.{index}.type",
            )
        if isinstance(part, TextContent):
            texts.append(part.text)
        elif message.role != "assistant":
            raise InvalidRequest(
                "Only an assistant refuses.", code="invalid_value", param=f"{param}.content.{index}.type"
            )
    return "\n".join(texts)


def _require_absent(message: ChatMessage, param: str) -> None:
    for name in ("tool_calls", "tool_call_id"):
        if getattr(message, name):
            raise InvalidRequest(
                f"A message of role `{message.role}` has no `{name}`.", code="invalid_value", param=f"{param}.{name}"
            )


def unserved_media(part: MediaContent, param: str) -> InvalidRequest:
    """A URL is named as such: nothing is ever fetched for a caller (T22)."""
    source = part.image_url or part.video_url or part.audio_url
    address = source.get("url") if isinstance(source, dict) else source
    if isinstance(address, str) and not address.startswith("data:"):
        return InvalidRequest(
            f"Content of type `{part.type}` is not supported, and the gateway fetches no URLs.",
            code="url_not_allowed",
            param=param,
            hint="send text",
        )
    return InvalidRequest(
        f"No model here takes content of type `{part.type}`.",
        code="unsupported_parameter",
        param=param,
        hint="send text",
    )
