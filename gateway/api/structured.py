"""Structured output: OpenAI's `response_format` and vLLM's constraints become one grammar value, within hard limits.

A schema is a program that an engine must compile: its size, depth, patterns and references are bounded here (T25).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from gateway.api.bounds import FewFields, JsonObject, Text
from gateway.api.http.body import parse_json
from gateway.errors import InvalidRequest

MAX_SCHEMA_NODES = 10_000
MAX_SCHEMA_DEPTH = 48
MAX_PATTERN = 512
MAX_CHOICES = 1_000
MAX_CHOICE = 4_096
MAX_CHOICES_CHARS = 65_536
MAX_GRAMMAR = 16_384
Choices = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_CHOICE)]],
    Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True),
]


class Strict(FewFields):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)


class JsonSchema(Strict):
    name: Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9_-]+$")] = "answer"
    description: Annotated[str, Field(max_length=4096)] | None = None
    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None
    """Of llama.cpp and Together: a schema beside `json_object`."""


class StructuredOutputs(Strict):
    """vLLM's object of the same name."""

    json_: Annotated[JsonObject | None, Field(alias="json")] = None
    regex: Text | None = None
    choice: Choices | None = None
    grammar: Text | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None
    """Of no effect: white space between values is bounded here."""


def schema_in(value: dict[str, Any] | str | None) -> dict[str, Any] | None:
    """The schema that `guided_json` holds, also as JSON in a text. Raises `InvalidRequest`."""
    if not isinstance(value, str):
        return value
    try:
        found = parse_json(value.encode())
    except InvalidRequest as error:
        raise InvalidRequest(f"`guided_json`: {error.message}", code=error.code, param="guided_json") from None
    if not isinstance(found, dict):
        raise InvalidRequest("`guided_json` must be an object.", code="invalid_type", param="guided_json")
    return found


def grammar_of(
    response_format: ResponseFormat | None,
    structured: StructuredOutputs | None,
    guided_json: dict[str, Any] | None,
    guided_regex: str | None,
    guided_choice: list[str] | None,
    guided_grammar: str | None,
) -> tuple[Mapping[str, Any] | None, str | None]:
    """The one constraint of a request and the field it came in, or Nones.

    Raises `InvalidRequest` when two are given or one is too complex.
    """
    found: list[tuple[str, str, Any]] = []
    if response_format is not None and response_format.type == "json_object":
        schema = response_format.schema_
        found.append(("response_format", "json_object" if schema is None else "json_schema", schema))
    elif response_format is not None and response_format.type == "json_schema":
        if response_format.json_schema is None or response_format.json_schema.schema_ is None:
            raise InvalidRequest(
                "`response_format.json_schema.schema` is required.",
                code="missing_required_parameter",
                param="response_format.json_schema.schema",
            )
        found.append(("response_format.json_schema.schema", "json_schema", response_format.json_schema.schema_))
    if structured is not None:
        named = {
            "json": ("json_schema", structured.json_),
            "regex": ("regex", structured.regex),
            "choice": ("choice", structured.choice),
            "grammar": ("grammar", structured.grammar),
        }
        found += [
            (f"structured_outputs.{name}", kind, value) for name, (kind, value) in named.items() if value is not None
        ]
        if structured.json_object:
            found.append(("structured_outputs.json_object", "json_object", None))
    guided = {
        "guided_json": ("json_schema", guided_json),
        "guided_regex": ("regex", guided_regex),
        "guided_choice": ("choice", guided_choice),
        "guided_grammar": ("grammar", guided_grammar),
    }
    found += [(name, kind, value) for name, (kind, value) in guided.items() if value is not None]
    if not found:
        return None, None
    if len(found) > 1:
        raise InvalidRequest(
            "More than one constraint on the answer was given.",
            code="invalid_value",
            param=found[1][0],
            hint="send only one of `response_format`, `structured_outputs`, `guided_*`",
        )
    param, kind, value = found[0]
    _bound(param, kind, value)
    form = response_format.json_schema if response_format is not None else None
    extra = {} if form is None else {"name": form.name, "strict": form.strict, "description": form.description}
    grammar = {"type": kind, "value": value} | {name: said for name, said in extra.items() if said is not None}
    return grammar, "response_format" if param.startswith("response_format.") else param


def _bound(param: str, kind: str, value: Any) -> None:
    if kind == "json_schema":
        require_bounded_schema(param, value)
    elif kind == "regex" and len(value) > MAX_PATTERN:
        raise _complex(param, f"a pattern of at most {MAX_PATTERN} characters")
    elif kind == "grammar" and len(value) > MAX_GRAMMAR:
        raise _complex(param, f"a grammar of at most {MAX_GRAMMAR} characters")
    elif kind == "choice" and sum(map(len, value)) > MAX_CHOICES_CHARS:
        raise _complex(param, f"choices of at most {MAX_CHOICES_CHARS} characters in all")


def require_bounded_schema(param: str, schema: object) -> None:
    """Raises `InvalidRequest` for a schema that is too large to compile, or that refers to another document."""
    nodes, queue = 0, [(schema, 0)]
    while queue:
        node, depth = queue.pop()
        nodes += 1
        if nodes > MAX_SCHEMA_NODES or depth > MAX_SCHEMA_DEPTH:
            raise _complex(param, f"at most {MAX_SCHEMA_NODES} nodes and {MAX_SCHEMA_DEPTH} levels")
        if isinstance(node, dict):
            for key, value in node.items():
                if key == "pattern" and isinstance(value, str) and len(value) > MAX_PATTERN:
                    raise _complex(param, f"patterns of at most {MAX_PATTERN} characters")
                if key == "$ref" and isinstance(value, str) and not value.startswith("#"):
                    raise InvalidRequest(
                        f"`{param}` refers to another document.",
                        code="url_not_allowed",
                        param=param,
                        hint="only references within the schema (`#/...`) are followed",
                    )
                queue.append((value, depth + 1))
        elif isinstance(node, list):
            queue += [(value, depth + 1) for value in node]


def _complex(param: str, limit: str) -> InvalidRequest:
    return InvalidRequest(f"`{param}` is too complex: {limit} are accepted.", code="schema_too_complex", param=param)
