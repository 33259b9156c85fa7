"""The shapes of what the routes of the Responses API answer, for the description of the API. Answers are rendered
without these."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, RootModel

from gateway.api.answers import Described, Extension, TokenWithTop

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(Described):
    type: Literal["output_text"]
    text: str
    annotations: list[Any] = Field(description="always empty")
    logprobs: list[TokenWithTop]


class InputText(Described):
    type: Literal["input_text"]
    text: str


class OutputRefusal(Described):
    type: Literal["refusal"]
    refusal: str


class ReasoningText(Described):
    type: Literal["reasoning_text"]
    text: str


class MessageOutput(Described):
    id: str
    type: Literal["message"]
    status: Status
    role: Literal["assistant", "user", "system", "developer"]
    content: list[Annotated[OutputText | InputText | OutputRefusal, Field(discriminator="type")]]


class ReasoningOutput(Described):
    id: str
    type: Literal["reasoning"]
    status: Status
    summary: list[Any] = Field(description="always empty: what the model thought is in `content`")
    content: list[ReasoningText]


class CallOutput(Described):
    id: str
    type: Literal["function_call"]
    status: Status
    call_id: str
    name: str
    arguments: str = Field(description="JSON, as the model wrote it")


class CallResult(Described):
    id: str
    type: Literal["function_call_output"]
    status: Status
    call_id: str
    output: str


OutputItem = Annotated[MessageOutput | ReasoningOutput | CallOutput, Field(discriminator="type")]
AnyItem = Annotated[MessageOutput | ReasoningOutput | CallOutput | CallResult, Field(discriminator="type")]


class CachedTokens(Described):
    cached_tokens: int = Field(description="0 where policy hides them")
    cache_write_tokens: int


class ReasoningTokens(Described):
    reasoning_tokens: int


class ResponseUsage(Described):
    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class ResponseFailure(Described):
    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class IncompleteReason(Described):
    reason: Literal["max_output_tokens", "content_filter"]


class ResponseExtension(Extension):
    code: str | None = Field(None, description="our code of the error of a failed response")


class ConversationName(Described):
    id: str


class ReasoningView(Described):
    effort: str | None
    summary: str | None


class FormatView(Described):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextFormatView(Described):
    format: FormatView
    verbosity: Literal["low", "medium", "high"]


class ToolView(Described):
    type: Literal["function"]
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool


class ChosenTool(Described):
    type: Literal["function"]
    name: str


class ResponseView(Described):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: ResponseFailure | None
    incomplete_details: IncompleteReason | None
    background: Literal[False]
    conversation: ConversationName | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str = Field(description="the model that answers")
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningView
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: bool = Field(description="whether it is, or will be, kept: false where policy says so or storage is away")
    temperature: float | None = Field(description="null: the model's own")
    text: TextFormatView
    tool_choice: Literal["auto", "none", "required"] | ChosenTool
    tools: list[ToolView]
    top_logprobs: int
    top_p: float | None
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    user: str | None
    x_esclusa: ResponseExtension | None = None


class DeletedResponse(Described):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ItemList(Described):
    object: Literal["list"]
    data: list[AnyItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ConversationView(Described):
    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class DeletedConversation(Described):
    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]


class InputTokensView(Described):
    object: Literal["response.input_tokens"]
    input_tokens: int


class Numbered(Described):
    sequence_number: int


class Lifecycle(Numbered):
    type: Literal[
        "response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed"
    ]
    response: ResponseView


class ItemEvent(Numbered):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class InItem(Numbered):
    item_id: str
    output_index: int


class PartEvent(InItem):
    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: int
    part: Annotated[OutputText | OutputRefusal | ReasoningText, Field(discriminator="type")]


class TextDeltaEvent(InItem):
    type: Literal["response.output_text.delta"]
    content_index: int
    delta: str
    logprobs: list[TokenWithTop]


class TextDone(InItem):
    type: Literal["response.output_text.done"]
    content_index: int
    text: str
    logprobs: list[TokenWithTop]


class ReasoningDeltaEvent(InItem):
    type: Literal["response.reasoning_text.delta", "response.refusal.delta"]
    content_index: int
    delta: str


class ReasoningDone(InItem):
    type: Literal["response.reasoning_text.done"]
    content_index: int
    text: str


class RefusalDone(InItem):
    type: Literal["response.refusal.done"]
    content_index: int
    refusal: str


class ArgumentsDelta(InItem):
    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ArgumentsDone(InItem):
    type: Literal["response.function_call_arguments.done"]
    arguments: str
    name: str


class ErrorEvent(Numbered):
    type: Literal["error"]
    code: str
    message: str
    param: str | None


class ResponseEvent(RootModel[Any]):
    """One event of a stream; its `event:` line repeats the type, and `sequence_number` counts from 0."""

    root: Annotated[
        Lifecycle
        | ItemEvent
        | PartEvent
        | TextDeltaEvent
        | TextDone
        | ReasoningDeltaEvent
        | ReasoningDone
        | RefusalDone
        | ArgumentsDelta
        | ArgumentsDone
        | ErrorEvent,
        Field(discriminator="type"),
    ]
