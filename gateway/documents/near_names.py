"""Names that are nearly what was written, for hints. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def near(found: str, valid: Iterable[str], *, most: int = 2, cutoff: float = 0.7) -> list[str]:
    """At most so many of the valid names, the nearest first, whatever their case."""
    by_lower = {name.lower(): name for name in sorted(valid)}
    return [by_lower[close] for close in get_close_matches(found.lower(), by_lower, n=most, cutoff=cutoff)]
