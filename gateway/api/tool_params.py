"""The tools of a chat's body: which functions a model may call, and whether it must. OpenAI's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.api.bounds import JsonObject
from gateway.api.structured import Strict, require_bounded_schema
from gateway.errors import InvalidRequest
from gateway.flow.tools import AUTO, ToolChoice, ToolSpec

MAX_TOOLS = 256
MAX_DESCRIPTION = 65_536
FunctionName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:/-]+$")]


class FunctionDefinition(Strict):
    name: FunctionName
    description: Annotated[str, Field(max_length=MAX_DESCRIPTION)] | None = None
    parameters: JsonObject | None = None
    """A JSON Schema of the arguments, as an object."""
    strict: bool | None = None


class FunctionTool(Strict):
    type: Literal["function"]
    function: FunctionDefinition
    cache_control: JsonObject | None = None
    """Of no effect: equal beginnings of prompts are always cached."""


class OtherTool(Strict):
    """Recognized only to refuse it with the right reason."""

    type: Annotated[str, Field(max_length=64)]

    @classmethod
    def refused(cls, index: int, kind: str) -> InvalidRequest:
        shown = kind if kind.replace("_", "").isalnum() else "(an unknown type)"
        return InvalidRequest(
            f"Tools of type `{shown}` are not served.",
            code="unsupported_parameter",
            param=f"tools.{index}.type",
            hint="send tools of type `function` and run them yourself",
        )


class NamedFunction(Strict):
    name: FunctionName


class NamedTool(Strict):
    type: Literal["function"] = "function"
    function: NamedFunction


class AllowedTools(Strict):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


class AllowedChoice(Strict):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


Choice = Literal["auto", "none", "required"] | NamedTool | AllowedChoice


def tools_of(tools: Sequence[FunctionTool]) -> tuple[ToolSpec, ...]:
    """Raises `InvalidRequest` for a schema that is too complex and for two functions of one name."""
    found: dict[str, ToolSpec] = {}
    for index, tool in enumerate(tools):
        function, param = tool.function, f"tools.{index}.function"
        if function.name in found:
            raise InvalidRequest(
                "Two tools have the same name.", code="invalid_value", param=f"{param}.name", hint="rename one of them"
            )
        if function.parameters is not None:
            require_bounded_schema(f"{param}.parameters", function.parameters)
        found[function.name] = ToolSpec(
            function.name, function.description or "", function.parameters, strict=bool(function.strict)
        )
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
    if isinstance(choice, NamedTool):
        _require_offered(tools, choice)
        return tools, ToolChoice("named", choice.function.name)
    allowed = choice.allowed_tools
    for tool in allowed.tools:
        _require_offered(tools, tool)
    names = {tool.function.name for tool in allowed.tools}
    return tuple(tool for tool in tools if tool.name in names), ToolChoice(allowed.mode)


def _require_offered(tools: tuple[ToolSpec, ...], named: NamedTool) -> None:
    if all(tool.name != named.function.name for tool in tools):
        raise InvalidRequest(
            "`tool_choice` names a function that is none of `tools`.",
            code="invalid_value",
            param="tool_choice",
            hint="name one of the tools that the request offers",
        )


def require_function_tools(value: Any) -> Any:
    """Before validation: a tool of another type is refused with its reason, not for its fields."""
    if isinstance(value, list):
        for index, tool in enumerate(value[:MAX_TOOLS]):
            kind = tool.get("type") if isinstance(tool, dict) else "function"
            if isinstance(kind, str) and kind != "function":
                raise OtherTool.refused(index, kind[:64])
    return value
