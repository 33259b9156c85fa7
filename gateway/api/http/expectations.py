"""Validation messages: pydantic's errors in plain words with the caller's own path. Never the value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.documents.validation_messages import EXPECTED_TYPES, LIMITS

FREE_KEYS = frozenset({"logit_bias", "metadata", "guided_json", "json", "schema"})
"""Fields whose keys the caller invents; a path ends there."""

ELEMENTS = (("str", "a list of texts"), ("int", "a list of whole numbers"), ("float", "a list of numbers"))


def expectation(reported: Sequence[Mapping[str, Any]], first: Mapping[str, Any], path: Sequence[str]) -> str:
    """The sentence about a field, from the errors of one place; the members of a union are joined by "or"."""
    kind = str(first["type"])
    within = _within(first["loc"], path)
    if kind in LIMITS:
        name, text = LIMITS[kind]
        limit = first.get("ctx", {}).get(name)
        if limit is not None:
            said = text.format(f"{limit:g}" if isinstance(limit, float) else str(limit).replace("False", "false"))
            return within + (
                said if limit != 1 else said.replace("characters", "character").replace("entries", "entry")
            )
    kinds = dict.fromkeys(_kind(error) for error in reported if str(error["type"]) in EXPECTED_TYPES)
    if kind in EXPECTED_TYPES:
        return f"{within}must be {' or '.join(kinds)}"
    return f"{within}is not valid"


def public_path(loc: Sequence[Any]) -> list[str]:
    """The way to the field as the caller wrote it: without the names of union members and validators,
    and without a key that the caller invented."""
    path: list[str] = []
    before: Any = None
    for part in loc[:-2] if loc and loc[-1] == "[key]" else loc:
        # Below a part of a message stands the name of its type, which the caller did not write.
        tag = isinstance(before, int) and len(path) > 1 and path[-2] == "content"
        before = part
        source = not path and part in ("body", "query", "path") and len(loc) > 1
        if source or tag or _is_tag(part):
            continue
        path.append(str(part))
        if part in FREE_KEYS:
            break
    return path


def _kind(error: Mapping[str, Any]) -> str:
    member = error["loc"][-1] if error["loc"] else None
    if str(error["type"]) == "list_type" and isinstance(member, str) and member.startswith("list["):
        element = member[len("list[") :].removeprefix("constrained-")
        return next((words for name, words in ELEMENTS if element.startswith(name)), "a list of objects")
    return EXPECTED_TYPES[str(error["type"])]


def _within(loc: Sequence[Any], path: Sequence[str]) -> str:
    """A path that ends before a key the caller invented tells that it speaks of what is inside."""
    if not path or path[-1] not in FREE_KEYS or path[-1] not in loc:
        return ""
    inside = loc[loc.index(path[-1]) + 1 :]
    return "" if not inside else "holds a key that " if inside[-1] == "[key]" else "holds a value that "


def _is_tag(part: object) -> bool:
    """Pydantic puts the names of union members into the path; they mean nothing to a caller."""
    if not isinstance(part, str):
        return False
    return part[:1].isupper() or "[" in part or part.startswith("constrained-") or part in ("str", "int", "float")
