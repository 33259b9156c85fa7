"""JSON schemas prepared for the grammar compiler: unknown formats are dropped, unsupported keywords are named.

Walks a schema by the meaning of its keywords, so that a property called `not` or an example is never taken for one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

KNOWN_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"}
)
"""Formats that are enforced. JSON Schema says of all others that they are ignored."""
UNSUPPORTED = frozenset(
    {
        "$dynamicRef",
        "contains",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "if",
        "maxContains",
        "minContains",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
    }
)
"""Keywords that constrain and that the compiler refuses."""
_SCHEMAS = frozenset(
    {"additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"}
)
_LISTS = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_MAPS = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})


def without_unknown_formats(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A copy without the `format`s that nobody would check, and without `uniqueItems: false`, which asks nothing."""
    copy: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "format" and isinstance(value, str) and value not in KNOWN_FORMATS:
            continue
        if key == "uniqueItems" and value is False:
            continue
        if key in _MAPS and isinstance(value, dict):
            copy[key] = {name: _copied(inner) for name, inner in value.items()}
        elif key in _LISTS and isinstance(value, list):
            copy[key] = [_copied(inner) for inner in value]
        elif key in _SCHEMAS:
            copy[key] = _copied(value)
        else:
            copy[key] = value
    return copy


def _copied(schema: Any) -> Any:
    return without_unknown_formats(schema) if isinstance(schema, dict) else schema


def unsupported_keyword(schema: Mapping[str, Any]) -> str | None:
    """The path of the first keyword that is refused, as `properties.*.uniqueItems`; None when there is none. The
    caller's own names are left out, because errors are kept on record."""
    return next(_unsupported(schema, ""), None)


def overlapping_one_of(schema: Mapping[str, Any]) -> str | None:
    """The path of the first `oneOf`, for the error that does not say which."""
    return next((path for path, keyword in _keywords(schema, "") if keyword == "oneOf"), None)


def _unsupported(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    return (where for where, keyword in _keywords(schema, path) if keyword in UNSUPPORTED)


def _keywords(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """(path, keyword) of every keyword, the outer ones first."""
    for key in schema:
        yield path + key, key
    for key, value in schema.items():
        inner: list[tuple[str, Any]] = []
        if key in _MAPS and isinstance(value, dict):
            inner = [(f"{path}{key}.*.", each) for each in value.values()]
        elif key in _LISTS and isinstance(value, list):
            inner = [(f"{path}{key}.{index}.", each) for index, each in enumerate(value)]
        elif key in _SCHEMAS:
            inner = [(f"{path}{key}.", value)]
        for where, each in inner:
            if isinstance(each, dict):
                yield from _keywords(each, where)
