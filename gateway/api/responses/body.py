"""The body of `/v1/responses`: OpenAI's parameters, as strict and as bounded as those of the other routes.

It becomes a `ChatRequest`, so that policy, limits, guardrails and audit see no difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError, model_validator

from gateway.api.bounds import JsonObject, Text
from gateway.api.http.errors import refusal_of
from gateway.api.responses.conversation import calls_of, messages_of
from gateway.api.responses.items import Item, Items, MessageItem, ReferenceItem
from gateway.api.responses.request import ResponseParams, ResponsesRequest
from gateway.api.responses.tools import Choice, Tools, chosen, tools_of
from gateway.api.schemas import MOST_LIKELY, Name, Output, Whole
from gateway.api.structured import Strict, require_bounded_schema
from gateway.errors import InvalidRequest
from gateway.flow.values import Action, GenerationParams, Message

LOGPROBS = "message.output_text.logprobs"
FORMAT = "text.format.schema"
MAX_HINT = 1024
Label = Annotated[str, Field(max_length=256)]
StoredId = Annotated[str, Field(min_length=1, max_length=128)]
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "background": (False,),
    "context_management": ([],),
    "n": (1,),
    "truncation": ("disabled",),
}
"""What a request may say of parameters that we do not have, because it is what happens anyway."""
INSTEAD: Mapping[str, str] = {
    "background": "ask without it, and stream; jobs in the background are batches",
    "max_tokens": "send `max_output_tokens`",
    "max_completion_tokens": "send `max_output_tokens`",
    "messages": "send `input`, or the request to `/v1/chat/completions`",
    "prompt": "stored prompts are not served; send `instructions` and `input`",
    "response_format": "send `text.format`",
    "truncation": "leave it out: nothing is cut from a conversation here, and one that does not fit is refused",
}
INCLUDES = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]
"""All but the last concern what no answer here has."""


class TextFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9_-]+$")] | None = None
    description: Annotated[str, Field(max_length=4096)] | None = None
    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextConfig(Strict):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(Strict):
    """How long to think, and what to tell of it. A model here thinks as its template says, and tells all."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Label | None = None
    mode: Label | None = None


class StreamOptions(Strict):
    include_obfuscation: bool | None = None
    """Padding against observers of an encrypted stream; there is none here."""


class ConversationId(Strict):
    id: StoredId


class ResponsesBody(Strict):
    action: ClassVar[Action] = "chat"

    model: Name
    input: Text | Items
    instructions: Text | None = None
    max_output_tokens: Output | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    text: TextConfig | None = None
    tools: Tools | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[Whole, Field(ge=1, le=10_000)] | None = None
    """Of tools that OpenAI itself runs; none is served."""
    reasoning: Reasoning | None = None
    include: Annotated[list[INCLUDES], Field(max_length=32, fail_fast=True)] | None = None
    store: bool | None = None
    previous_response_id: StoredId | None = None
    conversation: StoredId | ConversationId | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
            Field(max_length=16, fail_fast=True),
        ]
        | None
    ) = None
    user: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Annotated[str, Field(max_length=MAX_HINT)] | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    service_tier: Literal["auto", "default", "flex", "priority", "scale"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _asks_nothing(cls, value: Any) -> Any:
        """Parameters that we do not have are absent where they ask for nothing."""
        if not isinstance(value, dict):
            return value
        return {
            name: given
            for name, given in value.items()
            if name in cls.model_fields or (given is not None and not _is_neutral(name, given))
        }

    def hints(self) -> tuple[str, ...]:
        """The names of what was asked for and that no model here follows."""
        reasoning, text = self.reasoning or Reasoning(), self.text or TextConfig()
        given = {
            "include.reasoning.encrypted_content": "reasoning.encrypted_content" in (self.include or ()),
            "prompt_cache_key": self.prompt_cache_key is not None,
            "prompt_cache_retention": self.prompt_cache_retention is not None,
            "reasoning.effort": reasoning.effort is not None,
            "reasoning.summary": (reasoning.summary or reasoning.generate_summary) is not None,
            "service_tier": self.service_tier in ("flex", "priority", "scale"),
            "stream_options.include_obfuscation": bool(self.stream_options and self.stream_options.include_obfuscation),
            "text.verbosity": text.verbosity is not None,
        }
        return tuple(name for name, is_given in given.items() if is_given)

    def to_request(self) -> ResponsesRequest:
        """Raises `InvalidRequest` for fields that contradict each other."""
        if self.previous_response_id is not None and self.conversation is not None:
            raise InvalidRequest(
                "`previous_response_id` and `conversation` cannot both be given.",
                code="invalid_value",
                param="previous_response_id",
            )
        if not self.input and not isinstance(self.input, str) and self.previous_response_id is None:
            raise InvalidRequest("`input` must have at least 1 entry.", code="invalid_value", param="input")
        tools, choice = chosen(tools_of(self.tools or ()), self.tool_choice)
        asked, messages = self._asked()
        return ResponsesRequest(
            self.model,
            messages,
            tools,
            choice,
            self.parallel_tool_calls is not False,
            params=self._params(),
            stream=bool(self.stream),
            include_usage=True,
            user_label=self.safety_identifier or self.user,
            metadata=self.metadata or {},
            ignored_hints=self.hints(),
            asked=asked,
        )

    def _params(self) -> GenerationParams:
        logprobs = LOGPROBS in (self.include or ()) or bool(self.top_logprobs)
        grammar = self._grammar()
        return GenerationParams(
            max_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=MOST_LIKELY if self.top_p == 0 else self.top_p,
            logprobs=logprobs,
            top_logprobs=self.top_logprobs or 0,
            grammar=grammar,
            grammar_param=None if grammar is None else FORMAT if grammar["type"] == "json_schema" else "text.format",
        )

    def _grammar(self) -> dict[str, Any] | None:
        form = self.text.format if self.text is not None else None
        if form is None or form.type == "text":
            return None
        if form.type == "json_object":
            return {"type": "json_object", "value": None}
        for name, value in (("name", form.name), ("schema", form.schema_)):
            if value is None:
                raise InvalidRequest(
                    f"`text.format.{name}` is required.",
                    code="missing_required_parameter",
                    param=f"text.format.{name}",
                )
        require_bounded_schema(FORMAT, form.schema_)
        said = {"name": form.name, "strict": form.strict, "description": form.description}
        return {"type": "json_schema", "value": form.schema_} | {
            name: value for name, value in said.items() if value is not None
        }

    def _asked(self) -> tuple[ResponseParams, tuple[Message, ...]]:
        """Messages now, or later where the store has a part of them."""
        items: tuple[Item, ...] = (
            (MessageItem(role="user", content=self.input),) if isinstance(self.input, str) else tuple(self.input)
        )
        conversation = self.conversation.id if isinstance(self.conversation, ConversationId) else self.conversation
        asked = ResponseParams(
            store=self.store is not False,
            previous_response_id=self.previous_response_id,
            conversation=conversation,
            instructed=self.instructions is not None,
            before=int(self.instructions is not None),
            echo=self._echo(),
        )
        stored = (self.previous_response_id, conversation)
        if any(one is not None for one in stored) or any(isinstance(item, ReferenceItem) for item in items):
            return replace(asked, items=items, instructions=self.instructions), ()
        return asked, (*instructed(self.instructions), *messages_of(items))

    def _echo(self) -> dict[str, Any]:
        reasoning, text = self.reasoning or Reasoning(), self.text or TextConfig()
        form = text.format or TextFormat(type="text")
        return {
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "metadata": self.metadata or {},
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "prompt_cache_key": self.prompt_cache_key,
            "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary or reasoning.generate_summary},
            "safety_identifier": self.safety_identifier,
            "service_tier": "default",
            "temperature": self.temperature,
            "text": {
                "format": form.model_dump(by_alias=True, exclude_none=True),
                "verbosity": text.verbosity or "medium",
            },
            "top_logprobs": self.top_logprobs or 0,
            "top_p": self.top_p,
            "truncation": "disabled",
            "user": self.user,
        }


def instructed(instructions: str | None) -> tuple[Message, ...]:
    return () if instructions is None else (Message.of_text("system", instructions),)


def _is_neutral(name: str, value: Any) -> bool:
    # 0 equals False and is not what the parameter takes.
    return any(type(value) is type(plain) and value == plain for plain in NEUTRAL.get(name, ()))


def parse(value: object) -> ResponsesRequest:
    """Raises `InvalidRequest` naming the first wrong field, never its value."""
    try:
        body = ResponsesBody.model_validate(value)
    except ValidationError as error:
        refused = refusal_of(error)
        if refused.code == "unsupported_parameter":
            refused.hint = INSTEAD.get(refused.param or "", refused.hint)
        raise refused from None
    return body.to_request()


def with_history(request: ResponsesRequest, history: Sequence[Item], items: Sequence[Item]) -> ResponsesRequest:
    """The request with its messages: instructions, then what is stored, then its own input. Raises `InvalidRequest`."""
    asked = request.asked
    before = (*instructed(asked.instructions), *messages_of(history))
    messages = (*before, *messages_of(items, calls_of(before)))
    done = replace(asked, before=len(before), items=None, instructions=None)
    return replace(request, messages=messages, asked=done)
