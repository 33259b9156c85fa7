"""The shapes of what Anthropic's routes answer, for the description of the API. Answers are rendered without these."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, RootModel

from gateway.api.answers import Described, Extension

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "model_context_window_exceeded"]


class TextView(Described):
    type: Literal["text"]
    text: str


class ThinkingView(Described):
    type: Literal["thinking"]
    thinking: str
    signature: str = Field(description="`unsigned`: nothing is sealed")


class ToolUseView(Described):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any] = Field(description="`unparsed_arguments` alone where the model wrote no JSON object")


BlockView = Annotated[TextView | ThinkingView | ToolUseView, Field(discriminator="type")]


class UsageCount(Described):
    input_tokens: int = Field(description="without those read from the prefix cache")
    cache_creation_input_tokens: int
    cache_read_input_tokens: int | None = Field(description="null where policy hides it")
    output_tokens: int


class MessageView(Described):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[BlockView]
    stop_reason: StopReason | None = Field(description="null at the start of a stream")
    stop_sequence: str | None = Field(description="the one of `stop_sequences` that matched")
    usage: UsageCount
    x_esclusa: Extension | None = Field(None, description="absent at the start of a stream")


class MessageStart(Described):
    type: Literal["message_start"]
    message: MessageView


class BlockStart(Described):
    type: Literal["content_block_start"]
    index: int
    content_block: BlockView


class TextGrowth(Described):
    type: Literal["text_delta"]
    text: str


class ThinkingGrowth(Described):
    type: Literal["thinking_delta"]
    thinking: str


class SignatureGrowth(Described):
    type: Literal["signature_delta"]
    signature: str


class InputGrowth(Described):
    type: Literal["input_json_delta"]
    partial_json: str


class BlockDelta(Described):
    type: Literal["content_block_delta"]
    index: int
    delta: Annotated[TextGrowth | ThinkingGrowth | SignatureGrowth | InputGrowth, Field(discriminator="type")]


class BlockStop(Described):
    type: Literal["content_block_stop"]
    index: int


class StopFields(Described):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(Described):
    type: Literal["message_delta"]
    delta: StopFields
    usage: UsageCount
    x_esclusa: Extension


class MessageStop(Described):
    type: Literal["message_stop"]


class Ping(Described):
    type: Literal["ping"]


class TokensView(Described):
    input_tokens: int


class ModelInfo(Described):
    type: Literal["model"]
    id: str
    display_name: str
    created_at: str = Field(description="the epoch where it is not known")
    lifecycle: Literal["active"]
    max_input_tokens: int
    max_tokens: int


class AnthropicModelPage(Described):
    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


class ErrorDetails(Described):
    error_code: str


class ErrorView(Described):
    type: str = Field(description="Anthropic's word: `invalid_request_error`, `authentication_error`, ...")
    message: str
    code: str = Field(description="ours, as on every other route")
    param: str | None = None
    hint: str | None = None
    details: ErrorDetails


class AnthropicError(Described):
    type: Literal["error"]
    error: ErrorView
    request_id: str | None


class MessageEvent(RootModel[Any]):
    """One event of a stream; its `event:` line repeats the type."""

    root: Annotated[
        MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping | AnthropicError,
        Field(discriminator="type"),
    ]
