"""`POST /v1/completions`: the older, template-free form; the same pipeline and the same rules."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from gateway.api.bounds import Text
from gateway.api.http.body import BodyReader
from gateway.api.inference import Inference
from gateway.api.render import CompletionFormat
from gateway.api.schemas import Sampling, TokenId, requested
from gateway.errors import InvalidRequest
from gateway.flow.pipeline import Pipeline
from gateway.flow.values import Action, CompletionRequest, ModelRequest

PATH = "/v1/completions"


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


def parse(value: object) -> ModelRequest:
    return requested(CompletionBody, value)


def endpoint(pipeline: Pipeline, reader: BodyReader) -> Inference:
    return Inference(pipeline, reader, parse, CompletionFormat())
