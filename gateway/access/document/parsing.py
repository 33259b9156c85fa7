"""Parses a `Source` into a typed document; schema errors become places and hints a person can act on."""

from __future__ import annotations

import re
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.access.document.model import PolicySet
from gateway.access.document.problems import Location, Path, PolicyInvalid, Problem, listed, nearest
from gateway.access.document.source import Source, read_source

_COST_IN = re.compile(r"(?:cost|price|budget)_([a-z]{3})\Z")
Document = TypeVar("Document", bound=BaseModel)
MAX_PROBLEMS = 1_000
"""Told one by one; each is an object with its place, so a document that is wrong everywhere must not make more."""
_EXPECTED = {
    "string_type": "text (put it in quotes)",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "`true` or `false`",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


def parse_policy(raw: bytes | str, *, name: str, syntax: Literal["yaml", "json"] = "yaml") -> PolicySet:
    """Raises `PolicyInvalid` with every schema error found (up to `MAX_PROBLEMS`), with its line for YAML."""
    return parse_source(read_source(raw, name=name, syntax=syntax), PolicySet)


def parse_source(source: Source, schema: type[Document]) -> Document:
    try:
        return schema.model_validate(source.data)
    except ValidationError as error:
        count = error.error_count()
        if count > MAX_PROBLEMS:
            reason = f"{count} values are wrong, which are too many to list; is this a policy document?"
            raise PolicyInvalid([Problem(reason)], source.name) from None
        found = error.errors(include_url=False)
        inner = {tuple(details["loc"][:-1]) for details in found}
        # A list whose only item is wrong is also reported as empty; that follows from the item and helps nobody.
        told = [details for details in found if details["type"] != "too_short" or details["loc"] not in inner]
        problems = [_problem(details, source, schema) for details in told]
        # A misspelt name also looks like a missing one; the misspelling is what helps, so it comes first.
        raise PolicyInvalid(
            sorted(problems, key=lambda p: (p.kind != "unknown_field", _place(p))), source.name
        ) from None


def location_of(source: Source, path: Path) -> Location | None:
    """Place of the value at `path`, or of the closest parent that exists."""
    while path and path not in source.locations:
        path = path[:-1]
    return source.locations.get(path)


def _place(problem: Problem) -> tuple[int, int]:
    return (problem.location.line, problem.location.column) if problem.location else (0, 0)


def _problem(details: ErrorDetails, source: Source, schema: type[BaseModel]) -> Problem:
    path: Path = tuple(part for part in details["loc"] if part != "[key]")
    kind, found, context = details["type"], details.get("input"), details.get("ctx", {})
    location = location_of(source, path)
    if kind == "extra_forbidden":
        fields = _fields(schema, path[:-1])
        name = str(path[-1])
        money = _COST_IN.match(name)
        hint = f"write `cost` with `currency: {money.group(1).upper()}`" if money else nearest(name, fields)
        return Problem(
            f"unknown field `{name}`; expected one of {listed(fields, 20)}",
            source.key_locations.get(path, location),
            path,
            hint,
            kind="unknown_field",
        )
    if kind == "missing":
        return Problem(f"`{path[-1]}` is missing", location, path[:-1], f"add `{path[-1]}:` here")
    if kind == "literal_error":
        valid = _choices(schema, path)
        shown = listed(valid, 20) if valid else str(context.get("expected", "another value"))
        return Problem(f"found {_shown(found)}; expected {shown}", location, path, nearest(str(found), valid))
    if kind == "string_pattern_mismatch":
        return Problem(f"found {_shown(found)}; expected text of the form `{context['pattern']}`", location, path)
    if kind in _EXPECTED:
        quoted = "the text " if isinstance(found, str) else ""
        return Problem(f"found {quoted}{_shown(found)}; expected {_EXPECTED[kind]}", location, path)
    if kind == "too_short":
        return Problem(f"found an empty list; expected at least {context['min_length']}", location, path)
    if kind == "too_long":
        return Problem(f"found {_shown(found)}; expected at most {context['max_length']}", location, path)
    if kind == "value_error":
        return Problem(str(context["error"]), location, path)
    return Problem(f"found {_shown(found)}; {details['msg'].lower()}", location, path)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, tuple | list):
        return f"a list of {len(value)}"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    text = str(value)
    return f"`{text[:60]}…`" if len(text) > 60 else f"`{text}`"


def _fields(schema: Any, path: Path) -> list[str]:
    """Names valid below `path`."""
    target = _annotation(schema, path)
    if isinstance(target, type) and issubclass(target, BaseModel):
        return [field.alias or name for name, field in target.model_fields.items()]
    return []


def _choices(schema: Any, path: Path) -> list[str]:
    target = _annotation(schema, path)
    return [str(choice) for choice in get_args(target)] if get_origin(target) is Literal else []


def _annotation(annotation: Any, path: Path) -> Any:
    """The type that the schema gives to the value at `path`; optional and annotated wrappers taken off."""
    annotation = _bare(annotation)
    if not path:
        return annotation
    head, rest = path[0], path[1:]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            if (field.alias or name) == head:
                return _annotation(field.annotation, rest)
        return None
    arguments = get_args(annotation)
    if not arguments:
        return None
    return _annotation(arguments[1] if get_origin(annotation) is dict else arguments[0], rest)


def _bare(annotation: Any) -> Any:
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation = get_args(annotation)[0]
        elif origin in (Union, UnionType):
            annotation = next(part for part in get_args(annotation) if part is not type(None))
        else:
            return annotation
