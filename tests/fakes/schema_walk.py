"""Finds the places of a JSON Schema where a value may be of any size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

SELF_BOUNDED = {"uuid", "date-time", "date", "time", "duration"}
"""Formats that a parser bounds."""


def unbounded(schema: Any, definitions: dict[str, Any], at: str, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """The places of a JSON Schema where a value may be of any size."""
    if not isinstance(schema, dict):
        return
    reference = schema.get("$ref")
    if reference is not None:
        name = reference.rpartition("/")[2]
        if name not in seen:
            yield from unbounded(definitions[name], definitions, at, seen | {name})
        return
    for key in ("anyOf", "oneOf", "allOf"):
        for number, part in enumerate(schema.get(key, ())):
            yield from unbounded(part, definitions, f"{at}|{number}", seen)
    kind = schema.get("type")
    if kind == "string" and not (
        {"enum", "const", "maxLength"} & schema.keys() or schema.get("format") in SELF_BOUNDED
    ):
        yield f"{at}: a text without max_length"
    if kind == "array":
        if "maxItems" not in schema:
            yield f"{at}: a list without max_length"
        yield from unbounded(schema.get("items"), definitions, f"{at}[]", seen)
    if kind == "object":
        for name, part in schema.get("properties", {}).items():
            yield from unbounded(part, definitions, f"{at}.{name}", seen)
        if schema.get("additionalProperties"):
            if "maxProperties" not in schema:
                yield f"{at}: a map without max_length"
            if "maxLength" not in schema.get("propertyNames", {}):
                yield f"{at}: a map whose keys have no max_length"
            yield from unbounded(schema["additionalProperties"], definitions, f"{at}{{}}", seen)
