"""The text of a policy document as plain data, with the place of every key and value. Knows no schema.

Strict YAML or strict JSON (`gateway.documents`). Mistakes are `PolicyInvalid` with line and column.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from gateway.access.document.problems import PolicyInvalid, Problem
from gateway.documents.located_yaml import LocatedDocument, Location, Path, Refuse, read_yaml, require_visible
from gateway.documents.strict_json import Flaw, check_values, strict_decoder

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 16
MAX_VALUES = 100_000
"""Twenty for each of the most rules; every one may be wrong, and is then told."""


@dataclass(frozen=True, slots=True)
class Source:
    """`data` holds only dict, tuple, str, int, float, bool and None. `locations` is empty for JSON."""

    name: str
    text: str
    data: Any
    locations: Mapping[Path, Location]
    key_locations: Mapping[Path, Location]


def read_source(raw: bytes | str, *, name: str, syntax: Literal["yaml", "json"] = "yaml") -> Source:
    """Raises `PolicyInvalid`."""
    if len(raw) > MAX_BYTES:
        raise PolicyInvalid([Problem("the document is larger than 1 MiB", hint="split it or drop comments")], name)
    try:
        text = raw if isinstance(raw, str) else raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PolicyInvalid([Problem(f"byte {error.start} is not UTF-8")], name) from None

    def refuse(message: str, location: Location | None = None) -> PolicyInvalid:
        return PolicyInvalid([Problem(message, location)], name)

    read = _json if syntax == "json" else partial(read_yaml, max_depth=MAX_DEPTH, max_values=MAX_VALUES)
    found = read(text, refuse)
    if syntax == "yaml" and not found.locations:
        raise refuse("the document is empty; expected `apiVersion: esclusa/v1`")
    return Source(name, text, _frozen(found.data), found.locations, found.key_locations)


def _json(text: str, refuse: Refuse) -> LocatedDocument:
    def refused(flaw: Flaw, written: str) -> Exception:
        if flaw is Flaw.DUPLICATE_KEY:
            return refuse(f"duplicate key `{written}`", None)
        if flaw is Flaw.CONSTANT:
            return refuse(f"`{written}` is not a JSON number", None)
        if flaw is Flaw.DEPTH:
            return refuse(f"nested deeper than {MAX_DEPTH} levels", None)
        if flaw is Flaw.COUNT:
            return refuse(f"the document has more than {MAX_VALUES} values", None)
        return refuse("not JSON that can be read: too deep or a number too long", None)

    if sum(map(text.count, "[{,:")) > 3 * MAX_VALUES:  # before the parser, which no other thread interrupts
        raise refused(Flaw.COUNT, "")
    try:
        data = strict_decoder(refused).decode(text)
    except json.JSONDecodeError as error:
        raise refuse(f"not JSON: {error.msg}", Location(error.lineno, error.colno)) from None
    except RecursionError:
        raise refuse("not JSON that can be read: too deep or a number too long", None) from None
    visible = partial(require_visible, refuse=refuse, location=None)
    check_values(data, refused, visible, max_depth=MAX_DEPTH, max_values=MAX_VALUES)
    return LocatedDocument(data)


def _frozen(value: Any) -> Any:
    """Lists as tuples, the form of the document's types. Its depth is bounded."""
    if isinstance(value, list):
        return tuple([_frozen(item) for item in value])
    return {key: _frozen(item) for key, item in value.items()} if isinstance(value, dict) else value
