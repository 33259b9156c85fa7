"""The dearest bodies that a route can be sent: every field of its schema with the worst value of its type, and of
another, until the body is full. Pure; reads JSON Schema, knows no route.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TEXTS = ("text", "word", "escapes", "digits", "marks")
DEPTH = 5
"""Objects and lists within each other that are looked into for fields."""


@dataclass(frozen=True, slots=True)
class WorstBody:
    """`field` is the place in the body, `filled` what it holds."""

    field: str
    filled: str
    raw: bytes


def worst_bodies(
    schema: Mapping[str, Any],
    valid: Mapping[str, Any],
    size: int,
    *,
    texts: Sequence[str] = TEXTS,
    skip: Collection[str] = (),
) -> Iterator[WorstBody]:
    """For each field of `schema` one body per filling, of up to `size` bytes; the other fields come from `valid`.

    `texts`: what a text is filled with. `skip`: fields of the body itself that are left out.
    """
    for path, kinds in fields(schema, schema.get("$defs", {})):
        if path[0] in skip:
            continue
        around = _placed(path, valid)
        head, _, tail = json.dumps(around, ensure_ascii=False).encode().partition(_MARK_JSON)
        room = size - len(head) - len(tail)
        for name in dict.fromkeys(("numbers", *(found for kind in kinds for found in _fitting(kind, texts)))):
            yield WorstBody(".".join(path), name, head + fill(name, room) + tail)
    rest = json.dumps(dict(valid)).encode().rstrip(b"}") + (b"," if valid else b"")
    yield WorstBody("(unknown)", "keys", rest + fill("keys", size - len(rest) - 1)[1:])


def _fitting(kind: str, texts: Sequence[str]) -> Sequence[str]:
    return texts if kind == "string" else FITTING.get(kind, ())


def fields(
    schema: Mapping[str, Any], definitions: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Every place of a body and the types that it takes; `*` stands for an element of a list."""
    members = [_resolved(member, definitions) for member in _members(schema, definitions)]
    kinds = {str(member.get("type", "any")) for member in members}
    if path:
        yield path, kinds
    if len(path) >= DEPTH:
        return
    seen: set[str] = set()
    for member in members:
        for name, part in member.get("properties", {}).items():
            if name not in seen:
                seen.add(name)
                yield from fields(part, definitions, (*path, name))
        if member.get("type") == "array" and isinstance(member.get("items"), Mapping):
            yield from fields(member["items"], definitions, (*path, "*"))


def _members(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    schema = _resolved(schema, definitions)
    parts = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())]
    if not parts:
        yield schema
    for part in parts:
        yield from _members(part, definitions)


def _resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    return schema


_MARK = "\ue000here\ue000"
_MARK_JSON = json.dumps(_MARK, ensure_ascii=False).encode()


def _placed(path: tuple[str, ...], valid: Mapping[str, Any]) -> dict[str, Any]:
    """`valid` with a mark at `path`; what lies on the way comes from `valid` where it is there."""
    head, *rest = path
    below = valid.get(head)
    return {**valid, head: _inner(tuple(rest), below)}


def _inner(path: tuple[str, ...], below: Any) -> Any:
    if not path:
        return _MARK
    if path[0] == "*":
        first = below[0] if isinstance(below, list) and below else None
        return [_inner(path[1:], first)]
    return _placed(path, below if isinstance(below, Mapping) else {})


def fill(name: str, size: int) -> bytes:
    """One JSON value of about `size` bytes."""
    begin, item, end = FILLINGS[name]
    if name == "keys":
        made = ",".join(f'"k{number:07}":1' for number in range((size - 2) // 13)).encode()
        return b"{" + made + b"}"
    join = b"," if begin == b"[" else b""
    count = (size - len(begin) - len(end) + len(join)) // (len(item) + len(join))
    return begin + join.join([item] * count) + end


FILLINGS: Mapping[str, tuple[bytes, bytes, bytes]] = {
    "text": (b'"', b"palabra ", b'"'),
    "word": (b'"', b"a", b'"'),
    "escapes": (b'"', b"\\u00e9", b'"'),
    "marks": (b'"', b"<|", b'"'),
    "digits": (b'"', b"1234 5678 ", b'"'),
    "numbers": (b"[", b"1", b"]"),
    "texts": (b"[", b'"a"', b"]"),
    "objects": (b"[", b'{"a":1}', b"]"),
    "lists": (b"[", b"[]", b"]"),
    "keys": (b"{", b"", b"}"),
    "long number": (b"1.", b"1", b""),
}
FITTING: Mapping[str, tuple[str, ...]] = {
    "array": ("texts", "objects", "lists"),
    "object": ("keys",),
    "integer": ("long number",),
    "number": ("long number",),
    "any": ("keys", "objects"),
}
