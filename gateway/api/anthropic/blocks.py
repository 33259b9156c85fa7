"""The content blocks that a caller sends, by Anthropic's names. What no model here reads is recognized to be refused.

`cache_control` is a hint that nobody follows: prefixes are cached by themselves. `citations` and `signature` come back
from earlier answers and say nothing to a model.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict, Field

from gateway.api.bounds import FewFields, JsonObject, Text
from gateway.api.chat_messages import CallId
from gateway.api.structured import Strict
from gateway.api.tool_params import FunctionName

MAX_BLOCKS = 1024
"""Blocks of one turn: an agent may send the results of many calls at once."""


Label = Annotated[str, Field(max_length=4096)]


class Block(Strict):
    cache_control: JsonObject | None = None


class TextBlock(Block):
    type: Literal["text"]
    text: Text
    citations: Annotated[list[Any], Field(max_length=MAX_BLOCKS)] | None = None


class ThinkingBlock(Block):
    type: Literal["thinking"]
    thinking: Text
    signature: Text | None = None


class RedactedThinkingBlock(Block):
    """Only who made it can read it."""

    type: Literal["redacted_thinking"]
    data: Text


class ToolUseBlock(Block):
    type: Literal["tool_use"]
    id: CallId
    name: FunctionName
    input: JsonObject
    caller: JsonObject | None = None
    toolset_name: None = None


class OtherBlock(FewFields):
    """Recognized only to refuse it by name."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)

    type: Literal[
        "image",
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "tool_reference",
        "browser_state",
        "container_upload",
        "mcp_tool_use",
        "mcp_tool_result",
        "compaction",
    ]
    source: Any = None


class DocumentBlock(Block):
    """Plain text is read as text; any other source is refused."""

    type: Literal["document"]
    source: Any
    title: Label | None = None
    context: Text | None = None
    citations: JsonObject | None = None


class SearchResultBlock(Block):
    type: Literal["search_result"]
    source: Label
    title: Label
    content: Annotated[list[TextBlock], Field(max_length=MAX_BLOCKS, fail_fast=True)]
    citations: JsonObject | None = None


ResultBlock = Annotated[
    TextBlock | DocumentBlock | SearchResultBlock | OtherBlock,
    Field(discriminator="type"),
]


class ToolResultBlock(Block):
    type: Literal["tool_result"]
    tool_use_id: CallId
    content: Text | Annotated[list[ResultBlock], Field(max_length=MAX_BLOCKS, fail_fast=True)] | None = None
    is_error: bool | None = None
    toolset_name: None = None


ReadBlock: TypeAlias = TextBlock | DocumentBlock | SearchResultBlock | OtherBlock
"""What a model is to read in a turn of the user or in the result of a tool."""
AnyBlock: TypeAlias = ReadBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock
Blocks = Annotated[
    list[Annotated[AnyBlock, Field(discriminator="type")]],
    Field(min_length=1, max_length=MAX_BLOCKS, fail_fast=True),
]


class Turn(Strict):
    role: Literal["user", "assistant", "system"]
    content: Text | Blocks
