"""`POST /v1/chat/completions`: its body and its endpoint."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from gateway.api.bounds import Text
from gateway.api.http.body import BodyReader
from gateway.api.inference import Inference
from gateway.api.render import ChatFormat
from gateway.api.schemas import Output, Sampling, Whole, requested
from gateway.api.structured import Strict
from gateway.errors import InvalidRequest
from gateway.flow.pipeline import Pipeline
from gateway.flow.values import Action, ChatRequest, Message, ModelRequest

PATH = "/v1/chat/completions"


class TextPart(Strict):
    type: Literal["text"]
    text: Text


class OtherPart(Strict):
    """Recognized only to refuse it with the right reason."""

    type: Literal["image_url", "input_audio", "file", "video_url", "audio_url", "refusal"]
    image_url: Any = None
    input_audio: Any = None
    file: Any = None
    video_url: Any = None
    audio_url: Any = None
    refusal: Any = None


Part = Annotated[TextPart | OtherPart, Field(discriminator="type")]


class ChatMessage(Strict):
    """The null fields are what SDKs send back when they append an earlier answer."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[Part], Field(min_length=1, max_length=256, fail_fast=True)]
    name: Annotated[str, Field(max_length=64)] | None = None
    refusal: None = None
    tool_calls: None = None
    function_call: None = None
    audio: None = None
    annotations: None = None
    reasoning_content: None = None

    @model_validator(mode="before")
    @classmethod
    def _null_is_empty(cls, message: Any) -> Any:
        """An answer without text has `content: null`, and SDKs send it back so."""
        silent = isinstance(message, dict) and message.get("role") == "assistant" and "content" in message
        return {**message, "content": ""} if silent and message["content"] is None else message


class ChatBody(Sampling):
    action: ClassVar[Action] = "chat"
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=2048, fail_fast=True)]
    max_completion_tokens: Output | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None

    def to_request(self) -> ChatRequest:
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise InvalidRequest(
                "`max_tokens` and `max_completion_tokens` differ.", code="invalid_value", param="max_tokens"
            )
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("`top_logprobs` needs `logprobs: true`.", code="invalid_value", param="top_logprobs")
        params = self.params(
            max_tokens=self.max_completion_tokens or self.max_tokens,
            logprobs=bool(self.logprobs),
            top_logprobs=self.top_logprobs or 0,
            echo=False,
        )
        messages = tuple(_message(message) for message in self.messages)
        return ChatRequest(self.model, messages, params=params, **self.shared())


def parse(value: object) -> ModelRequest:
    return requested(ChatBody, value)


def endpoint(pipeline: Pipeline, reader: BodyReader) -> Inference:
    return Inference(pipeline, reader, parse, ChatFormat())


def _message(message: ChatMessage) -> Message:
    if isinstance(message.content, str):
        return Message.of_text(message.role, message.content, message.name)
    texts = []
    for part in message.content:
        if isinstance(part, OtherPart):
            raise _unsupported_part(part)
        texts.append(part.text)
    return Message.of_text(message.role, "\n".join(texts), message.name)


def _unsupported_part(part: OtherPart) -> InvalidRequest:
    """A URL is named as such: nothing is ever fetched for a caller (T22)."""
    source = part.image_url or part.video_url or part.audio_url
    address = source.get("url") if isinstance(source, dict) else source
    if isinstance(address, str) and not address.startswith("data:"):
        return InvalidRequest(
            f"Content of type `{part.type}` is not supported, and the gateway fetches no URLs.",
            code="url_not_allowed",
            param="messages.content",
            hint="send text",
        )
    return InvalidRequest(
        f"Content of type `{part.type}` is not supported.", code="unsupported_parameter", param="messages.content"
    )
