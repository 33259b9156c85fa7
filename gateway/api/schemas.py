"""Request schemas of the OpenAI-shaped routes: strict types, hard ranges, nothing unknown.

The allow-list is the defense against parameters that steer routing, templates or files (T21) and against sampling
abuse (T26). Everything accepted here is honored by the local engine; a backend refuses what it cannot honor.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BeforeValidator, Field, ValidationError

from gateway.api.bounds import MAX_TEXT, JsonObject, Text
from gateway.api.http.errors import refusal_of
from gateway.api.ignorable_params import INSTEAD, without_hints, without_no_effect
from gateway.api.prompts import MAX_TOKEN_ID, TokenId
from gateway.api.structured import Choices, ResponseFormat, Strict, StructuredOutputs, grammar_of, schema_in
from gateway.errors import InvalidRequest
from gateway.flow.values import (
    Action,
    GenerationParams,
    ModelRequest,
)

MAX_CHOICES = 16
MOST_LIKELY = 1e-6
"""What `top_p: 0` means, which OpenAI's API takes: the most likely token alone."""
Name = Annotated[str, Field(min_length=1, max_length=256)]
Stop = Annotated[str, Field(min_length=1, max_length=256)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


def _whole(value: Any) -> Any:
    """4.0 is an integer to JSON Schema, and some languages write every number so."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


Whole = Annotated[int, BeforeValidator(_whole)]
Output = Annotated[Whole, Field(ge=1, le=1_000_000)]


class StreamOptions(Strict):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    """vLLM's: usage in every chunk, where `include_usage` asks for it at all."""
    include_obfuscation: bool | None = None
    """Of no use here: padding against observers of an encrypted stream."""


class AskingBody(Strict):
    """The body of a route that runs a model."""

    action: ClassVar[Action]

    def to_request(self) -> ModelRequest:
        """Raises `InvalidRequest` for fields that contradict each other."""
        raise NotImplementedError


class Sampling(AskingBody):
    """Shared by chat and completions. `None` and absence mean the same."""

    model: Name
    max_tokens: Output | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    n: Annotated[Whole, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16, fail_fast=True)] | None = None
    seed: Annotated[Whole, Field(ge=-(2**63), le=2**63 - 1)] | None = None
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
    top_k: Annotated[Whole, Field(ge=-1, le=MAX_TOKEN_ID)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    min_tokens: Annotated[Whole, Field(ge=0, le=1_000_000)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=128, fail_fast=True)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    bad_words: Annotated[list[Stop], Field(max_length=128, fail_fast=True)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1, max_length=65_536, fail_fast=True)] | None = None
    prompt_logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonObject | Text | None = None
    """A schema, or its JSON as text."""
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
            schema_in(self.guided_json),
            self.guided_regex,
            self.guided_choice,
            self.guided_grammar,
        )
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return GenerationParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=MOST_LIKELY if self.top_p == 0 else self.top_p,
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
        options = self.stream_options
        return {
            "stream": bool(self.stream),
            "include_usage": bool(options and options.include_usage),
            "continuous_usage": bool(options and options.include_usage and options.continuous_usage_stats),
            "user_label": self.user or self.safety_identifier,
            "metadata": self.metadata or {},
        }


Body = TypeVar("Body", bound=AskingBody)


def validated(schema: type[Body], value: object) -> Body:
    """Raises `InvalidRequest` naming the first wrong field, never its value."""
    try:
        return schema.model_validate(without_no_effect(schema.action, value, schema.model_fields))
    except ValidationError as error:
        refused = refusal_of(error)
        if refused.code == "unsupported_parameter":
            refused.hint = INSTEAD.get(refused.param or "", refused.hint)
        raise refused from None


def requested(schema: type[Body], value: object) -> ModelRequest:
    """The request of a body, with the names of the hints that it gave. Raises as `validated`."""
    plain, hints = without_hints(schema.action, value)
    request = validated(schema, plain).to_request()
    return replace(request, ignored_hints=hints) if hints else request
