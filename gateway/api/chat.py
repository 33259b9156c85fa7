"""`POST /v1/chat/completions`: its body and its endpoint."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from gateway.api.chat_messages import ChatMessage, messages_of
from gateway.api.http.body import BodyReader
from gateway.api.inference import Inference
from gateway.api.render import ChatFormat
from gateway.api.schemas import Output, Sampling, Whole, requested
from gateway.api.structured import Strict
from gateway.api.tool_params import MAX_TOOLS, Choice, FunctionTool, chosen, require_function_tools, tools_of
from gateway.errors import InvalidRequest
from gateway.flow.pipeline import Pipeline
from gateway.flow.values import Action, ChatRequest, ModelRequest

PATH = "/v1/chat/completions"


class TemplateVariables(Strict):
    """vLLM's `chat_template_kwargs`, as far as they steer reasoning: others would steer the template itself (T21)."""

    enable_thinking: bool | None = None
    thinking: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high"] | None = None


class ChatBody(Sampling):
    action: ClassVar[Action] = "chat"
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=2048, fail_fast=True)]
    max_completion_tokens: Output | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    tools: (
        Annotated[
            list[FunctionTool],
            Field(max_length=MAX_TOOLS, fail_fast=True),
            BeforeValidator(require_function_tools),
        ]
        | None
    ) = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None

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
        tools, choice = chosen(tools_of(self.tools or ()), self.tool_choice)
        return ChatRequest(
            self.model,
            messages_of(self.messages),
            tools,
            choice,
            self.parallel_tool_calls is not False,
            {} if self.chat_template_kwargs is None else self.chat_template_kwargs.model_dump(exclude_none=True),
            params=params,
            **self.shared(),
        )


def parse(value: object) -> ModelRequest:
    return requested(ChatBody, value)


def endpoint(pipeline: Pipeline, reader: BodyReader) -> Inference:
    return Inference(pipeline, reader, parse, ChatFormat())
