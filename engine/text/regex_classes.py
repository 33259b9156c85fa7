"""Regex classes for digits, word characters and white space as ASCII, as readers of JSON, SQL and logs mean them. Pure.

The regex engine below reads them as Unicode: a model asked for five digits may answer with those of any script.
"""

from __future__ import annotations

_ASCII = {
    "d": "[0-9]",
    "D": "[^0-9]",
    "w": "[0-9A-Za-z_]",
    "W": "[^0-9A-Za-z_]",
    "s": r"[\t\n\x0B\f\r ]",
    "S": r"[^\t\n\x0B\f\r ]",
}
"""Brackets nest, so the same text serves inside a character class."""


def ascii_classes(pattern: str) -> str:
    """The pattern with each class written out; every other escape, an escaped backslash too, stays as it is."""
    parts: list[str] = []
    position = 0
    while position < len(pattern):
        if pattern[position] == "\\" and position + 1 < len(pattern):
            escape = pattern[position + 1]
            parts.append(_ASCII.get(escape, "\\" + escape))
            position += 2
        else:
            parts.append(pattern[position])
            position += 1
    return "".join(parts)
