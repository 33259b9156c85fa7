"""The tools of a request: functions that the caller runs, in the flat form of this API. Others are refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from gateway.api.bounds import FewFields, JsonObject
from gateway.api.structured import Strict, require_bounded_schema
from gateway.api.tool_params import MAX_DESCRIPTION, MAX_TOOLS, FunctionName, require_function_tools
from gateway.errors import InvalidRequest
from gateway.flow.tools import AUTO, ToolChoice, ToolSpec


class FunctionTool(FewFields):
    """What else is said of it concerns OpenAI's own service (`defer_loading`, `output_schema`, ...)."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, hide_input_in_errors=True)

    type: Literal["function"]
    name: FunctionName
    description: Annotated[str, Field(max_length=MAX_DESCRIPTION)] | None = None
    parameters: JsonObject | None = None
    """A JSON Schema of the arguments, as an object."""
    strict: bool | None = None


Tools = Annotated[
    list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True), BeforeValidator(require_function_tools)
]


class NamedTool(Strict):
    type: Literal["function"]
    name: FunctionName


class AllowedTools(Strict):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


Choice = Literal["auto", "none", "required"] | NamedTool | AllowedTools


def tools_of(tools: Sequence[FunctionTool]) -> tuple[ToolSpec, ...]:
    """Raises `InvalidRequest` for a schema that is too complex and for two functions of one name."""
    found: dict[str, ToolSpec] = {}
    for index, tool in enumerate(tools):
        if tool.name in found:
            raise InvalidRequest(
                "Two tools have the same name.",
                code="invalid_value",
                param=f"tools.{index}.name",
                hint="rename one of them",
            )
        if tool.parameters is not None:
            require_bounded_schema(f"tools.{index}.parameters", tool.parameters)
        found[tool.name] = ToolSpec(tool.name, tool.description or "", tool.parameters, strict=bool(tool.strict))
    return tuple(found.values())


def chosen(tools: tuple[ToolSpec, ...], choice: Choice | None) -> tuple[tuple[ToolSpec, ...], ToolChoice]:
    """The tools that may be called, and whether one must be. Raises `InvalidRequest` for a choice of what is not
    offered."""
    if choice is None or choice == "auto":
        return tools, AUTO
    if choice == "none":
        return tools, ToolChoice("none")
    if not tools:
        raise InvalidRequest(
            "`tool_choice` needs `tools`.", code="invalid_value", param="tool_choice", hint="send the tools as well"
        )
    if choice == "required":
        return tools, ToolChoice("required")
    named = {choice.name} if isinstance(choice, NamedTool) else {tool.name for tool in choice.tools}
    if not named <= {tool.name for tool in tools}:
        raise InvalidRequest(
            "`tool_choice` names a function that is none of `tools`.",
            code="invalid_value",
            param="tool_choice",
            hint="name one of the tools that the request offers",
        )
    if isinstance(choice, NamedTool):
        return tools, ToolChoice("named", choice.name)
    return tuple(tool for tool in tools if tool.name in named), ToolChoice(choice.mode)


def tool_object(tool: ToolSpec) -> dict[str, Any]:
    parameters = None if tool.parameters is None else dict(tool.parameters)
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description or None,
        "parameters": parameters,
        "strict": tool.strict,
    }


def choice_object(choice: ToolChoice) -> str | dict[str, Any]:
    return choice.mode if choice.mode != "named" else {"type": "function", "name": choice.name}
