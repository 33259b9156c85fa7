"""Request schemas of the OpenAI-shaped routes: strict types, hard ranges, nothing unknown.

The allow-list is the defense against parameters that steer routing, templates or files (T21) and against sampling
abuse (T26). Everything accepted here is honored by the local engine; a backend refuses what it cannot honor.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from gateway.api.bounds import MAX_TEXT, JsonObject, Text
from gateway.api.http.errors import refusal_of
from gateway.api.ignorable_params import without_hints, without_no_effect
from gateway.api.structured import Choices, ResponseFormat, Strict, StructuredOutputs, grammar_of
from gateway.errors import InvalidRequest
from gateway.flow.values import (
    Action,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    GenerationParams,
    Message,
    ModelRequest,
)

MAX_CHOICES = 16
MAX_TOKEN_ID = 2**31 - 1
Name = Annotated[str, Field(min_length=1, max_length=256)]
Stop = Annotated[str, Field(min_length=1, max_length=256)]
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Output = Annotated[int, Field(ge=1, le=1_000_000)]


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


class StreamOptions(Strict):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class Sampling(Strict):
    """Shared by chat and completions. `None` and absence mean the same."""

    model: Name
    max_tokens: Output | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16, fail_fast=True)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: (
        Annotated[
            dict[
                Annotated[str, Field(max_length=10, pattern=r"^[0-9]{1,10}$")], Annotated[float, Field(ge=-100, le=100)]
            ],
            Field(max_length=1024, fail_fast=True),
        ]
        | None
    ) = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[str, Field(max_length=256)] | None = None
    safety_identifier: Annotated[str, Field(max_length=256)] | None = None
    """OpenAI's successor of `user`: the same label."""
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
            Field(max_length=16, fail_fast=True),
        ]
        | None
    ) = None
    response_format: ResponseFormat | None = None
    # vLLM's extensions, under vLLM's names
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKEN_ID)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=128, fail_fast=True)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    bad_words: Annotated[list[Stop], Field(max_length=128, fail_fast=True)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1, max_length=65_536, fail_fast=True)] | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonObject | None = None
    guided_regex: Annotated[str, Field(min_length=1, max_length=MAX_TEXT)] | None = None
    guided_choice: Choices | None = None
    guided_grammar: Annotated[str, Field(min_length=1, max_length=MAX_TEXT)] | None = None

    def params(self, *, max_tokens: int | None, logprobs: bool, top_logprobs: int, echo: bool) -> GenerationParams:
        if self.min_tokens and max_tokens is not None and self.min_tokens > max_tokens:
            raise InvalidRequest("`min_tokens` is larger than `max_tokens`.", code="invalid_value", param="min_tokens")
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("`stream_options` needs `stream: true`.", code="invalid_value", param="stream_options")
        grammar, grammar_param = grammar_of(
            self.response_format,
            self.structured_outputs,
            self.guided_json,
            self.guided_regex,
            self.guided_choice,
            self.guided_grammar,
        )
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return GenerationParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=self.seed,
            n=self.n or 1,
            stop=stop,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            repetition_penalty=self.repetition_penalty,
            logit_bias={int(token): bias for token, bias in (self.logit_bias or {}).items()},
            min_tokens=self.min_tokens or 0,
            ignore_eos=bool(self.ignore_eos),
            bad_words=tuple(self.bad_words or ()),
            include_stop_str_in_output=bool(self.include_stop_str_in_output),
            skip_special_tokens=self.skip_special_tokens is not False,
            allowed_token_ids=tuple(self.allowed_token_ids) if self.allowed_token_ids is not None else None,
            logprobs=logprobs,
            top_logprobs=top_logprobs,
            prompt_logprobs=self.prompt_logprobs,
            echo=echo,
            grammar=grammar,
            grammar_param=grammar_param,
        )

    def shared(self) -> dict[str, Any]:
        """The fields of a request that are none of its content or parameters."""
        return {
            "stream": bool(self.stream),
            "include_usage": bool(self.stream_options and self.stream_options.include_usage),
            "user_label": self.user or self.safety_identifier,
            "metadata": self.metadata or {},
        }


class ChatBody(Sampling):
    action: ClassVar[Action] = "chat"
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=2048, fail_fast=True)]
    max_completion_tokens: Output | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

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


class CompletionBody(Sampling):
    action: ClassVar[Action] = "completions"
    prompt: Text | Annotated[list[TokenId], Field(min_length=1, max_length=1_000_000, fail_fast=True)]
    max_tokens: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """0 with `echo` only: the prompt's own text and, with `logprobs`, its log-probabilities."""
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _one_prompt(cls, value: Any) -> Any:
        """A list of one prompt is that prompt: some clients send nothing else."""
        if isinstance(value, list) and value and isinstance(value[0], str | list):
            if len(value) > 1:
                raise PydanticCustomError("too_long", "one prompt a request", {"max_length": 1})
            return value[0]
        return value

    def to_request(self) -> CompletionRequest:
        if self.prompt == "":
            raise InvalidRequest("`prompt` is empty.", code="invalid_value", param="prompt")
        if self.max_tokens == 0 and not self.echo:
            raise InvalidRequest("`max_tokens` is 0 without `echo`.", code="invalid_value", param="max_tokens")
        params = self.params(
            max_tokens=16 if self.max_tokens is None else self.max_tokens,
            logprobs=self.logprobs is not None,
            top_logprobs=self.logprobs or 0,
            echo=bool(self.echo),
        )
        prompt = self.prompt if isinstance(self.prompt, str) else tuple(self.prompt)
        return CompletionRequest(self.model, prompt, params=params, **self.shared())


class EmbeddingBody(Strict):
    action: ClassVar[Action] = "embeddings"
    model: Name
    input: (
        Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
        | Annotated[
            list[Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]],
            Field(min_length=1, max_length=2048, fail_fast=True),
        ]
    )
    encoding_format: Literal["float", "base64"] | None = None
    user: Annotated[str, Field(max_length=256)] | None = None

    def to_request(self) -> EmbeddingRequest:
        inputs = (self.input,) if isinstance(self.input, str) else tuple(self.input)
        return EmbeddingRequest(
            self.model, inputs, base64_vectors=self.encoding_format == "base64", user_label=self.user
        )


Body = TypeVar("Body", ChatBody, CompletionBody, EmbeddingBody)


def validated(schema: type[Body], value: object) -> Body:
    """Raises `InvalidRequest` naming the first wrong field, never its value."""
    try:
        return schema.model_validate(without_no_effect(schema.action, value))
    except ValidationError as error:
        raise refusal_of(error) from None


def requested(schema: type[Body], value: object) -> ModelRequest:
    """The request of a body, with the names of the hints that it gave. Raises as `validated`."""
    plain, hints = without_hints(schema.action, value)
    request = validated(schema, plain).to_request()
    return replace(request, ignored_hints=hints) if hints else request


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
