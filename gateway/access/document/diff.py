"""The difference between two policies, by meaning (rule by rule) and by text. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gateway.access.document.model import PolicySet

_KEYS = {"rules": "id", "limits": "id", "roleBindings": "id", "tests": "name"}


@dataclass(frozen=True, slots=True)
class Difference:
    """`path` names the part by its id (`rules.employee-small`); `before`/`after` are JSON-ready."""

    path: str
    kind: Literal["added", "removed", "changed"]
    before: Any = None
    after: Any = None


def differences(before: PolicySet, after: PolicySet) -> tuple[Difference, ...]:
    """Ordered by path. The order of rules is not a difference: it means nothing."""
    old, new = _parts(before), _parts(after)
    found = []
    for path in sorted(old.keys() | new.keys()):
        if path not in old:
            found.append(Difference(path, "added", after=new[path]))
        elif path not in new:
            found.append(Difference(path, "removed", before=old[path]))
        elif old[path] != new[path]:
            found.append(Difference(path, "changed", old[path], new[path]))
    return tuple(found)


def text_diff(before: str, after: str, *, names: tuple[str, str]) -> str:
    """Unified, three lines of context."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), fromfile=names[0], tofile=names[1]
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def summary(changes: tuple[Difference, ...], *, limit: int = 50) -> dict[str, Any]:
    """Small enough for an audit record."""
    shown = [
        {"path": change.path, "kind": change.kind, "before": change.before, "after": change.after}
        for change in changes[:limit]
    ]
    return {"changes": shown, "more": max(0, len(changes) - limit)}


def _parts(document: PolicySet) -> dict[str, Any]:
    return dict(_named_parts(document.to_data()))


def _named_parts(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for section, content in data.items():
        if isinstance(content, dict):
            for name, value in content.items():
                yield f"{section}.{name}", value
        elif isinstance(content, list):
            for index, item in enumerate(content):
                yield f"{section}.{item[_KEYS[section]] if section in _KEYS else index}", item
        else:
            yield section, content
