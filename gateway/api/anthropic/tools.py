"""The tools of a request: functions that the caller runs. Tools that Anthropic runs itself are refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from gateway.api.bounds import FewFields, JsonObject
from gateway.api.structured import Strict, require_bounded_schema
from gateway.api.tool_params import MAX_DESCRIPTION, FunctionName
from gateway.errors import InvalidRequest
from gateway.flow.tools import AUTO, ToolChoice, ToolSpec

MAX_TOOLS = 512


class CustomTool(Strict):
    type: Literal["custom"] | None = None
    name: FunctionName
    description: Annotated[str, Field(max_length=MAX_DESCRIPTION)] | None = None
    input_schema: JsonObject
    strict: bool | None = None
    # What follows says how Anthropic's own service handles the tool, and nothing to the model.
    cache_control: JsonObject | None = None
    eager_input_streaming: bool | None = None
    input_examples: Annotated[list[Any], Field(max_length=64)] | None = None
    defer_loading: bool | None = None
    allowed_callers: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=8)] | None = None


class OtherTool(FewFields):
    """Recognized only to refuse it by name."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)

    type: Annotated[str, Field(max_length=64)]


def _kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    return "OtherTool" if isinstance(kind, str) and kind != "custom" else "CustomTool"


Tool = Annotated[
    Annotated[CustomTool, Tag("CustomTool")] | Annotated[OtherTool, Tag("OtherTool")], Discriminator(_kind)
]
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]


class ToolChoiceBody(Strict):
    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool | None = None


def tools_of(tools: Sequence[CustomTool | OtherTool]) -> tuple[ToolSpec, ...]:
    """Raises `InvalidRequest` for a tool of another kind, a name that comes twice, or a schema that is too large."""
    found = dict[str, ToolSpec]()
    for number, tool in enumerate(tools):
        if isinstance(tool, OtherTool):
            raise InvalidRequest(
                f"`tools.{number}` is a tool of a type that Anthropic's own service runs or defines.",
                code="unsupported_parameter",
                param=f"tools.{number}.type",
                hint="offer a function of your own with `name` and `input_schema`; in agents switch such tools off",
            )
        if tool.name in found:
            raise InvalidRequest("Two tools have one name.", code="invalid_value", param=f"tools.{number}.name")
        require_bounded_schema(f"tools.{number}.input_schema", tool.input_schema)
        found[tool.name] = ToolSpec(tool.name, tool.description or "", tool.input_schema, bool(tool.strict))
    return tuple(found.values())


def choice_of(choice: ToolChoiceBody | None, tools: Sequence[ToolSpec]) -> ToolChoice:
    """Raises `InvalidRequest` for a tool that is not among those offered."""
    if choice is None or choice.type == "auto":
        return AUTO
    if choice.type == "none":
        return ToolChoice("none")
    if not tools:
        raise InvalidRequest("`tool_choice` needs `tools`.", code="invalid_value", param="tool_choice")
    if choice.type == "any":
        return ToolChoice("required")
    if choice.name is None:
        raise InvalidRequest(
            "`tool_choice.name` is required.", code="missing_required_parameter", param="tool_choice.name"
        )
    if choice.name not in {tool.name for tool in tools}:
        raise InvalidRequest(
            "`tool_choice.name` is not the name of a tool.", code="invalid_value", param="tool_choice.name"
        )
    return ToolChoice("named", choice.name)
