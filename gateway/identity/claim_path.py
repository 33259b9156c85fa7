"""The path of a value in the claims, as written in the configuration; never a guess.

Owns syntax and lookup. `a.b` walks objects; `/a/b.c/d` is a JSON Pointer (RFC 6901) for names with dots; a name with
`://` (Auth0 style) is taken whole. Knows no provider and no meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_MAX_SEGMENTS = 8


@dataclass(frozen=True, slots=True)
class ClaimPath:
    text: str
    segments: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> ClaimPath:
        """Raises `ValueError` with a public reason."""
        if "://" in text:
            segments: tuple[str, ...] = (text,)
        elif text.startswith("/"):
            segments = tuple(part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/"))
        else:
            segments = tuple(text.split("."))
        if not all(segments) or len(segments) > _MAX_SEGMENTS:
            raise ValueError(f"`{text}` is not a claim path such as `realm_access.roles`")
        return cls(text, segments)

    @property
    def leaf(self) -> str:
        return self.segments[-1]

    def find(self, claims: Mapping[str, Any]) -> Any:
        """The value, or None when any step is missing or is not an object. JSON null counts as missing."""
        value: Any = claims
        for segment in self.segments:
            if not isinstance(value, Mapping):
                return None
            value = value.get(segment)
        return value
