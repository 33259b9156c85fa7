"""The shapes of what `/v1` answers, for the description of the API. Answers are rendered elsewhere, without these.

Tests hold real answers against them, unknown fields included, so that the description stays true.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Described(BaseModel):
    model_config = ConfigDict(extra="forbid", title=None)


class Extension(Described):
    """What this gateway says about an answer."""

    request_id: str
    route: str | None = Field(description="`direct`, or how a virtual model was resolved")
    policy_version: int | None
    cost_micro: int = Field(description="micro-units of the model's currency; 0 in a stream before its end")
    stop: Literal["budget", "revoked", "policy", "deadline", "guardrails", "repetition"] | None = Field(
        None, description="why this gateway ended the answer early; absent when it did not"
    )


class PromptDetails(Described):
    cached_tokens: int


class CompletionDetails(Described):
    reasoning_tokens: int


class UsageView(Described):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails | None = Field(None, description="absent where policy hides it")
    completion_tokens_details: CompletionDetails | None = Field(None, description="absent without reasoning")


class TokenView(Described):
    token: str
    logprob: float
    bytes: list[int]


class TokenWithTop(TokenView):
    top_logprobs: list[TokenView]


class ChatLogprobs(Described):
    content: list[TokenWithTop]
    refusal: None = None


class CalledFunctionView(Described):
    name: str
    arguments: str = Field(description="JSON, as the model wrote it")


class CallView(Described):
    id: str
    type: Literal["function"]
    function: CalledFunctionView


class AssistantMessage(Described):
    role: Literal["assistant"]
    content: str | None = Field(description="null where the answer is calls of tools, or a refusal")
    refusal: str | None = None
    tool_calls: list[CallView] | None = Field(None, description="absent where the model has called nothing")
    reasoning_content: str | None = Field(None, description="what the model wrote before its answer")
    reasoning: str | None = Field(None, description="the same under another name")


class PromptToken(Described):
    logprob: float
    decoded_token: str


PromptLogprobs = list[dict[str, PromptToken] | None]
FinishReason = Literal["stop", "length", "content_filter", "tool_calls", "abort"]


class ChatChoice(Described):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatCompletion(Described):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str = Field(description="the model that answered")
    choices: list[ChatChoice]
    usage: UsageView
    prompt_logprobs: PromptLogprobs | None = None
    x_esclusa: Extension


class FunctionGrowth(Described):
    name: str | None = Field(None, description="with the first piece of a call")
    arguments: str = Field(description="a further piece")


class CallGrowth(Described):
    index: int = Field(description="which call of the choice")
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionGrowth


class Delta(Described):
    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[CallGrowth] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class ChatChunkChoice(Described):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatCompletionChunk(Described):
    """One event of a stream. The last event is `[DONE]`; a failure is an event with `error` and no `[DONE]`."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice] = Field(description="empty in the usage chunk")
    usage: UsageView | None = None
    x_esclusa: Extension | None = None


class CompletionLogprobs(Described):
    """One entry a token; with `echo`, those of the prompt first."""

    tokens: list[str] = Field(description="`bytes:` and the bytes in hexadecimal for a part of a character")
    token_logprobs: list[float | None] = Field(description="null for the first token of an echoed prompt")
    top_logprobs: list[dict[str, float] | None] = Field(description="the token itself besides its alternatives")
    text_offset: list[int] = Field(description="in characters of `text`, an echoed prompt included")


class CompletionChoice(Described):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    prompt_logprobs: PromptLogprobs | None = None


class TextCompletion(Described):
    """A whole answer, and the shape of each event of a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageView | None = None
    x_esclusa: Extension | None = None


class EmbeddingView(Described):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str = Field(description="numbers, or base64 of little-endian 32-bit floats")


class EmbeddingUsage(Described):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Described):
    object: Literal["list"]
    data: list[EmbeddingView]
    model: str
    usage: EmbeddingUsage
    x_esclusa: Extension


class RankedDocument(Described):
    text: str


class RankView(Described):
    index: int = Field(description="among the documents of the request")
    relevance_score: float = Field(description="cosine, -1 to 1")
    document: RankedDocument | None = None


class RankingView(Described):
    """The nearest document first."""

    id: str
    model: str
    usage: EmbeddingUsage
    results: list[RankView]
    x_esclusa: Extension


class ScoreView(Described):
    index: int
    object: Literal["score"]
    score: float = Field(description="cosine, -1 to 1")


class ScoresView(Described):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ScoreView]
    usage: UsageView
    x_esclusa: Extension


class TokenizedView(Described):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizedView(Described):
    prompt: str


class Kinds(Described):
    kinds: list[str] = Field(description="of what was found, such as `es_nif` or `email`")


class ModerationResult(Described):
    """Our three categories; OpenAI's own are null, since nobody looks for them here."""

    flagged: bool
    categories: dict[str, bool | None]
    category_scores: dict[str, float | None]
    category_applied_input_types: dict[str, list[str]]
    x_esclusa: Kinds


class ModerationView(Described):
    id: str
    model: str
    results: list[ModerationResult]


class Capabilities(Described):
    chat: bool
    completions: bool
    embeddings: bool
    moderations: bool
    tools: bool = Field(description="calls functions that the request offers")
    json_schema: bool = Field(description="answers that follow a schema")
    logprobs: bool
    vision: bool
    audio: bool


class PriceView(Described):
    currency: str = Field(description="ISO 4217")
    prompt_micro: int = Field(description="millionths of the currency per million prompt tokens")
    completion_micro: int = Field(description="the same for output tokens")


class ModelExtension(Described):
    tier: Literal["small", "large"] | None
    virtual: bool = Field(description="a name that the router turns into a real model")
    context_window: int
    actions: list[str]
    tools: bool = Field(description="whether it calls tools")
    default_output_tokens: int | None = Field(None, description="of an answer whose caller names no length")
    resolves_to: list[str] | None = Field(None, description="of a virtual name: what it may become for you")


class ModelObject(Described):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int = Field(description="prompt and answer together, in tokens; vLLM's name")
    context_length: int = Field(description="the same under another name that clients read")
    max_output_tokens: int = Field(description="the longest answer that you may ask for")
    capabilities: Capabilities
    languages: list[str] = Field(description="ISO 639-1 codes; empty where nobody has said")
    sampling_defaults: dict[str, float] = Field(description="used where a request says nothing")
    pricing: PriceView
    x_esclusa: ModelExtension


class ModelList(Described):
    object: Literal["list"]
    data: list[ModelObject]


class Alive(Described):
    status: Literal["alive"]


class ReadinessView(Described):
    status: Literal["ready", "loading", "unavailable", "draining"]
    stage: str
    percent: float
    parts: dict[str, str] = Field(description="the state of each dependency; `degraded` still serves")
