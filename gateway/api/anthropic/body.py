"""The body of `/v1/messages`: Anthropic's parameters, as strict and as bounded as those of the other routes.

It becomes the same `ChatRequest` that a chat becomes, so that policy, limits, guardrails and audit see no difference.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError, model_validator

from gateway.api.anthropic.blocks import TextBlock, Turn
from gateway.api.anthropic.conversation import block_hints, messages_of, without_billing
from gateway.api.anthropic.tools import ToolChoiceBody, Tools, choice_of, tools_of
from gateway.api.bounds import JsonObject, Text
from gateway.api.http.errors import refusal_of
from gateway.api.prompts import MAX_TOKEN_ID
from gateway.api.schemas import MOST_LIKELY, Name, Output, Stop, Whole
from gateway.api.structured import Strict, require_bounded_schema
from gateway.errors import InvalidRequest
from gateway.flow.values import Action, ChatRequest, GenerationParams

UNSERVED = frozenset({"container", "inference_geo", "mcp_servers", "user_profile_id"})
Effort = Literal["low", "medium", "high", "xhigh", "max"]


class Metadata(Strict):
    user_id: Annotated[str, Field(max_length=512)] | None = None
    """A label: agents put JSON with ids of device and session here."""


class Thinking(Strict):
    """How long to think, and whether. A model here thinks as its template says."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[Whole, Field(ge=1, le=1_000_000)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Strict):
    type: Literal["json_schema"]
    schema_: Annotated[JsonObject, Field(alias="schema")]


class OutputConfig(Strict):
    effort: Effort | None = None
    format: OutputFormat | None = None


class Prompted(Strict):
    """What of a body the model reads, and how it may answer: all that a count of tokens needs."""

    action: ClassVar[Action] = "chat"
    model: Name
    messages: Annotated[list[Turn], Field(min_length=1, max_length=2048, fail_fast=True)]
    system: Text | Annotated[list[TextBlock], Field(max_length=256, fail_fast=True)] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoiceBody | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: JsonObject | None = None
    context_management: JsonObject | None = None
    diagnostics: JsonObject | None = None
    thread: JsonObject | None = None
    """Asks the server to hold the conversation; the SDKs go on without where the code of the refusal says so."""
    speed: Literal["standard", "fast"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _asks_nothing(cls, value: Any) -> Any:
        """Parameters that we do not have are absent where they ask for nothing, and refused by name otherwise."""
        if not isinstance(value, dict):
            return value
        return {name: given for name, given in value.items() if name not in UNSERVED or given not in (None, [])}

    def hints(self) -> tuple[str, ...]:
        """The names of what was asked for and that no model here follows."""
        first = self.system if isinstance(self.system, str) else next((one.text for one in self.system or ()), "")
        of_blocks = block_hints(self.system, self.messages)
        given = {
            "cache_control": self.cache_control is not None
            or "cache_control" in of_blocks
            or any(getattr(tool, "cache_control", None) is not None for tool in self.tools or ()),
            "citations": "citations" in of_blocks,
            "context_management": self.context_management is not None,
            "diagnostics": self.diagnostics is not None,
            "output_config.effort": self.output_config is not None and self.output_config.effort is not None,
            "speed": self.speed == "fast",
            "thinking": self.thinking is not None,
            "x-anthropic-billing-header": without_billing(first) != first,
        }
        return tuple(name for name, is_given in given.items() if is_given)

    def prompt(self) -> dict[str, Any]:
        """The fields of a chat that the model reads. Raises `InvalidRequest`."""
        if self.thread is not None:
            raise InvalidRequest(
                "`thread` is not supported: conversations are not kept here.",
                code="thread_unsupported_request",
                param="thread",
                hint="send the whole conversation with each request",
            )
        tools = tools_of(self.tools or ())
        return {
            "messages": messages_of(self.system, self.messages),
            "tools": tools,
            "tool_choice": choice_of(self.tool_choice, tools),
            "parallel_tool_calls": not (self.tool_choice and self.tool_choice.disable_parallel_tool_use),
        }


class MessagesBody(Prompted):
    max_tokens: Output
    stop_sequences: Annotated[list[Stop], Field(max_length=16, fail_fast=True)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[Whole, Field(ge=0, le=MAX_TOKEN_ID)] | None = None
    stream: bool | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

    def to_request(self) -> ChatRequest:
        schema = None
        if self.output_config is not None and self.output_config.format is not None:
            schema = self.output_config.format.schema_
            require_bounded_schema(FORMAT, schema)
        params = GenerationParams(
            max_tokens=self.max_tokens,
            up_to_window=True,  # agents ask for more than small models have; Anthropic's own end with their window too
            temperature=self.temperature,
            top_p=MOST_LIKELY if self.top_p == 0 else self.top_p,
            top_k=self.top_k or None,
            stop=tuple(self.stop_sequences or ()),
            grammar=None if schema is None else {"type": "json_schema", "value": schema, "strict": True},
            grammar_param=None if schema is None else FORMAT,
        )
        return ChatRequest(
            self.model,
            params=params,
            stream=bool(self.stream),
            include_usage=True,
            user_label=self.metadata.user_id if self.metadata is not None else None,
            ignored_hints=self.hints(),
            **self.prompt(),
        )


FORMAT = "output_config.format.schema"


def parse(value: object) -> ChatRequest:
    """Raises `InvalidRequest` naming the first wrong field, never its value."""
    try:
        body = MessagesBody.model_validate(value)
    except ValidationError as error:
        raise refusal_of(error) from None
    return body.to_request()
