"""The text of a policy document as plain data, with the place of every key and value. Knows no schema.

Reads a strict subset of YAML 1.2 (JSON schema scalars: `no` and `07:00` stay text; no anchors, aliases, tags,
duplicate keys or second document) and strict JSON. Mistakes are `PolicyInvalid` with line and column.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from gateway.access.document.problems import Location, Path, PolicyInvalid, Problem

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 16
MAX_VALUES = 100_000
"""Twenty for each of the most rules; every one may be wrong, and is then told."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is ten times faster; the pure reader is the fallback
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"[-+]?(0|[1-9][0-9]*)?(\.[0-9]+)?([eE][-+]?[0-9]+)?\Z")
_WORDS: Mapping[str, bool | None] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip


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
    return _read_json(text, name) if syntax == "json" else _Reader(text, name).read()


class _Reader:
    def __init__(self, text: str, name: str) -> None:
        self._text = text
        self._name = name
        self._locations: dict[Path, Location] = {}
        self._keys: dict[Path, Location] = {}

    def read(self) -> Source:
        try:
            events = iter(yaml.parse(self._text, Loader=_LOADER))
            data = self._document(events)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            location = Location(mark.line + 1, mark.column + 1) if mark else None
            raise PolicyInvalid(
                [Problem(f"not YAML: {error.problem or error.context}", location)], self._name
            ) from None
        except yaml.reader.ReaderError as error:
            line = self._text.count("\n", 0, error.position) + 1
            raise PolicyInvalid(
                [Problem("a control character is not allowed", Location(line, 1))], self._name
            ) from None
        return Source(self._name, self._text, data, self._locations, self._keys)

    def _document(self, events: Iterator[Any]) -> Any:
        data: Any = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._fail("a second document starts here; expected one", event)
                data = self._value(next(events), events, ())
        if not documents:
            raise PolicyInvalid([Problem("the document is empty; expected `apiVersion: esclusa/v1`")], self._name)
        return data

    def _value(self, event: Any, events: Iterator[Any], path: Path) -> Any:
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            self._fail("anchors and aliases are not allowed; write the value out", event)
        self._locations[path] = _location(event)
        if len(self._locations) > MAX_VALUES:
            self._fail(f"the document has more than {MAX_VALUES} values", event)
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        if event.tag is not None:
            self._fail(f"the tag `{event.tag}` is not allowed", event)
        if len(path) >= MAX_DEPTH:
            self._fail(f"nested deeper than {MAX_DEPTH} levels", event)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(events, path)
        return self._mapping(events, path)

    def _sequence(self, events: Iterator[Any], path: Path) -> tuple[Any, ...]:
        items: list[Any] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(self._value(event, events, (*path, len(items))))
        return tuple(items)

    def _mapping(self, events: Iterator[Any], path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                self._fail("a key must be plain text", event)
            key: str = event.value
            _refuse_odd_characters(key, _location(event), self._name)
            if key in found:
                self._fail(f"duplicate key `{key}`", event)
            self._keys[(*path, key)] = _location(event)
            found[key] = self._value(next(events), events, (*path, key))
        return found

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        _refuse_odd_characters(text, _location(event), self._name)
        if event.tag not in (None, "!"):
            self._fail(f"the tag `{event.tag}` is not allowed", event)
        if event.style or event.tag == "!":
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _INT.match(text) and len(text) <= 19:
            return int(text)
        if _FLOAT.match(text) and any(sign in text for sign in ".eE") and text.strip("+-.eE"):
            return float(text)
        return text

    def _fail(self, message: str, event: Any) -> None:
        raise PolicyInvalid([Problem(message, _location(event))], self._name)


def _location(event: Any) -> Location:
    return Location(event.start_mark.line + 1, event.start_mark.column + 1)


def _refuse_odd_characters(text: str, location: Location | None, name: str) -> None:
    """Invisible characters make two names look alike (T14); none has a use in a policy."""
    if text.isascii() and text.isprintable():
        return
    for character in text:
        category = unicodedata.category(character)
        if category in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") and character not in "\n\t":
            raise PolicyInvalid(
                [Problem(f"the invisible character U+{ord(character):04X} is not allowed", location)], name
            )


def _read_json(text: str, name: str) -> Source:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in items:
            if key in found:
                raise PolicyInvalid([Problem(f"duplicate key `{key}`")], name)
            found[key] = value
        return found

    def constant(word: str) -> Any:
        raise PolicyInvalid([Problem(f"`{word}` is not a JSON number")], name)

    if sum(map(text.count, "[{,:")) > 3 * MAX_VALUES:  # before the parser, which no other thread interrupts
        raise PolicyInvalid([Problem(f"the document has more than {MAX_VALUES} values")], name)
    try:
        data = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise PolicyInvalid([Problem(f"not JSON: {error.msg}", Location(error.lineno, error.colno))], name) from None
    except (RecursionError, ValueError):
        raise PolicyInvalid([Problem("not JSON that can be read: too deep or a number too long")], name) from None
    return Source(name, text, _frozen(data, name, 0, iter(range(MAX_VALUES))), {}, {})


def _frozen(value: Any, name: str, depth: int, left: Iterator[int]) -> Any:
    if depth > MAX_DEPTH:
        raise PolicyInvalid([Problem(f"nested deeper than {MAX_DEPTH} levels")], name)
    if next(left, None) is None:
        raise PolicyInvalid([Problem(f"the document has more than {MAX_VALUES} values")], name)
    if isinstance(value, str):
        _refuse_odd_characters(value, None, name)
        return value
    if isinstance(value, list):
        return tuple(_frozen(item, name, depth + 1, left) for item in value)
    if isinstance(value, dict):
        for key in value:
            _refuse_odd_characters(key, None, name)
        return {key: _frozen(item, name, depth + 1, left) for key, item in value.items()}
    return value
