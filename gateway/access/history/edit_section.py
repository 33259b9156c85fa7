"""Replace one top-level section of a policy text and leave every other line, comments included, as it was. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import yaml

from gateway.access.document.source import read_source
from gateway.access.history.versions import Syntax


def replace_section(text: str, syntax: Syntax, name: str, items: Sequence[dict[str, Any]]) -> str:
    """The text with section `name` holding `items`, added or removed as needed.

    Comments inside the section go; a document in flow style or JSON is written anew.
    """
    source = read_source(text, name="policy", syntax=syntax)
    if syntax == "json":
        return json.dumps({**_without(source.data, name), **({name: list(items)} if items else {})}, indent=2)
    block = _block(name, items)
    tops = {path[0]: location for path, location in source.key_locations.items() if len(path) == 1}
    if any(location.column != 1 for location in tops.values()):
        return _dump({**_without(source.data, name), **({name: list(items)} if items else {})})
    lines = text.splitlines(keepends=True)
    if name not in tops:
        end = "" if not lines or lines[-1].endswith("\n") else "\n"
        return text + end + (f"\n{block}" if block else "")
    first = tops[name].line - 1
    later = [location.line - 1 for location in tops.values() if location.line - 1 > first]
    last = min(later, default=len(lines))
    while last > first + 1 and _belongs_to_next(lines[last - 1]):
        last -= 1
    return "".join(lines[:first]) + block + "".join(lines[last:])


def _belongs_to_next(line: str) -> bool:
    """Blank lines and comments in the first column stand above the section that follows."""
    return not line.strip() or line.startswith("#")


def _block(name: str, items: Sequence[dict[str, Any]]) -> str:
    return _dump({name: list(items)}) if items else ""


def _without(data: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: _plain(value) for key, value in data.items() if key != name}


def _plain(value: Any) -> Any:
    """Tuples are how a `Source` holds lists; the YAML writer wants lists."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _dump(data: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110)
    return text
