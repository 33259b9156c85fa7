"""A strict subset of YAML 1.2 as plain data, with the place of every key and value. Knows no schema.

JSON schema scalars (`no` and `07:00` stay text); no anchors, aliases, tags, duplicate keys or second document.
Invisible characters, which make two names look alike, are refused.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is ten times faster; the pure reader is the fallback
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"[-+]?(0|[1-9][0-9]*)?(\.[0-9]+)?([eE][-+]?[0-9]+)?\Z")
_WORDS: Mapping[str, bool | None] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a text; both count from 1."""

    line: int
    column: int


Refuse = Callable[[str, Location | None], Exception]
"""(what is wrong, where) -> the error to raise."""


@dataclass(frozen=True, slots=True)
class LocatedDocument:
    """`data` holds only dict, list, str, int, float, bool and None; None also for an empty text."""

    data: Any
    locations: Mapping[Path, Location] = field(default_factory=dict)
    key_locations: Mapping[Path, Location] = field(default_factory=dict)


def read_yaml(text: str, refuse: Refuse, *, max_depth: int, max_values: int) -> LocatedDocument:
    """Raises what `refuse` makes of the first mistake."""
    return _Reader(text, refuse, max_depth, max_values).read()


def require_visible(text: str, refuse: Refuse, location: Location | None) -> None:
    """Raises what `refuse` makes of a control, format, private or unassigned character but tab and newline."""
    if text.isascii() and text.isprintable():
        return
    for character in text:
        category = unicodedata.category(character)
        if category in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") and character not in "\n\t":
            raise refuse(f"the invisible character U+{ord(character):04X} is not allowed", location)


class _Reader:
    def __init__(self, text: str, refuse: Refuse, max_depth: int, max_values: int) -> None:
        self._text, self._refuse = text, refuse
        self._max_depth, self._max_values = max_depth, max_values
        self._locations: dict[Path, Location] = {}
        self._keys: dict[Path, Location] = {}

    def read(self) -> LocatedDocument:
        try:
            data = self._document(iter(yaml.parse(self._text, Loader=_LOADER)))
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            location = Location(mark.line + 1, mark.column + 1) if mark else None
            raise self._refuse(f"not YAML: {error.problem or error.context}", location) from None
        except yaml.reader.ReaderError as error:
            line = self._text.count("\n", 0, error.position) + 1
            raise self._refuse("a control character is not allowed", Location(line, 1)) from None
        return LocatedDocument(data, self._locations, self._keys)

    def _document(self, events: Iterator[Any]) -> Any:
        data: Any = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._refuse("a second document starts here; expected one", _location(event))
                data = self._value(next(events), events, ())
        return data

    def _value(self, event: Any, events: Iterator[Any], path: Path) -> Any:
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise self._refuse("anchors and aliases are not allowed; write the value out", _location(event))
        self._locations[path] = _location(event)
        if len(self._locations) > self._max_values:
            raise self._refuse(f"the document has more than {self._max_values} values", _location(event))
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        if event.tag is not None:
            raise self._refuse(f"the tag `{event.tag}` is not allowed", _location(event))
        if len(path) >= self._max_depth:
            raise self._refuse(f"nested deeper than {self._max_depth} levels", _location(event))
        return (
            self._sequence(events, path) if isinstance(event, yaml.SequenceStartEvent) else self._mapping(events, path)
        )

    def _sequence(self, events: Iterator[Any], path: Path) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(self._value(event, events, (*path, len(items))))
        return items

    def _mapping(self, events: Iterator[Any], path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise self._refuse("a key must be plain text", _location(event))
            key: str = event.value
            require_visible(key, self._refuse, _location(event))
            if key in found:
                raise self._refuse(f"duplicate key `{key}`", _location(event))
            self._keys[(*path, key)] = _location(event)
            found[key] = self._value(next(events), events, (*path, key))
        return found

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        require_visible(text, self._refuse, _location(event))
        if event.tag not in (None, "!"):
            raise self._refuse(f"the tag `{event.tag}` is not allowed", _location(event))
        if event.style or event.tag == "!":
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _INT.match(text) and len(text) <= 19:
            return int(text)
        if _FLOAT.match(text) and any(sign in text for sign in ".eE") and text.strip("+-.eE"):
            return float(text)
        return text


def _location(event: Any) -> Location:
    return Location(event.start_mark.line + 1, event.start_mark.column + 1)
