"""Parses a `Source` into a typed document; schema errors become places and hints a person can act on."""

from __future__ import annotations

import re
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.access.document.model import PolicySet
from gateway.access.document.problems import PolicyInvalid, Problem, listed
from gateway.access.document.source import Source, read_source
from gateway.documents.located_yaml import Location, Path
from gateway.documents.schema_walk import choices, field_names, nearest
from gateway.documents.validation_messages import EXPECTED_TYPES

_COST_IN = re.compile(r"(?:cost|price|budget)_([a-z]{3})\Z")
Document = TypeVar("Document", bound=BaseModel)
MAX_PROBLEMS = 1_000
"""Told one by one; each is an object with its place, so a document that is wrong everywhere must not make more."""
_EXPECTED = {**EXPECTED_TYPES, "string_type": "text (put it in quotes)", "bool_type": "`true` or `false`"}
_EXPECTED |= dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "a mapping")


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
        reported = [details for details in found if details["type"] != "too_short" or details["loc"] not in inner]
        problems = [_problem(details, source, schema) for details in reported]
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
        fields = field_names(schema, path[:-1])
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
        valid = choices(schema, path)
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
