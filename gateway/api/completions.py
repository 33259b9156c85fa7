"""`POST /v1/completions`: the older, template-free form; the same pipeline and the same rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

from pydantic import Field

from gateway.api.http.body import BodyReader
from gateway.api.inference import Inference
from gateway.api.prompts import Prompts, prompts_of
from gateway.api.render import CompletionFormat
from gateway.api.schemas import MAX_CHOICES, Sampling, Whole, requested
from gateway.errors import InvalidRequest
from gateway.flow.pipeline import Pipeline
from gateway.flow.values import Action, CompletionRequest, GenerationParams, ModelRequest

PATH = "/v1/completions"
MAX_ANSWERS = 256
MAX_PROMPT_SIZE = 4_000_000
"""Characters and token ids of all prompts together."""


class CompletionBody(Sampling):
    action: ClassVar[Action] = "completions"
    prompt: Prompts
    """A text, token ids, or a list of either: then each is answered, the choices of the first one first."""
    max_tokens: Annotated[Whole, Field(ge=0, le=1_000_000)] | None = None
    """0 with `echo` only: the prompt's own text and, with `logprobs`, its log-probabilities."""
    logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    best_of: Annotated[Whole, Field(ge=1, le=MAX_CHOICES)] | None = None

    def to_request(self) -> CompletionRequest:
        prompts = prompts_of(self.prompt)
        if sum(map(len, prompts)) > MAX_PROMPT_SIZE or len(prompts) * (self.best_of or self.n or 1) > MAX_ANSWERS:
            raise InvalidRequest(
                f"The prompts are too many or too long for one request; it makes at most {MAX_ANSWERS} answers.",
                code="too_many_values",
                param="prompt",
                hint="send them in several requests, or lower `n` or `best_of`",
            )
        if self.max_tokens == 0 and not self.echo:
            raise InvalidRequest("`max_tokens` is 0 without `echo`.", code="invalid_value", param="max_tokens")
        params = self.params(
            max_tokens=16 if self.max_tokens is None else self.max_tokens,
            logprobs=self.logprobs is not None,
            top_logprobs=self.logprobs or 0,
            echo=bool(self.echo),
        )
        return CompletionRequest(self.model, prompts, params=self._best_of(params), **self.shared())

    def _best_of(self, params: GenerationParams) -> GenerationParams:
        if self.best_of is None or self.best_of == params.n:
            return params
        if self.best_of < params.n or self.stream:
            raise InvalidRequest(
                "`best_of` is smaller than `n`." if self.best_of < params.n else "`best_of` cannot be streamed.",
                code="invalid_value",
                param="best_of",
                hint="the best answers are known once all have ended" if self.stream else None,
            )
        return replace(params, best_of=self.best_of)


def parse(value: object) -> ModelRequest:
    return requested(CompletionBody, value)


def endpoint(pipeline: Pipeline, reader: BodyReader) -> Inference:
    return Inference(pipeline, reader, parse, CompletionFormat())
