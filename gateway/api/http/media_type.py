"""Accepts a `Content-Type` that announces JSON in UTF-8. Pure (RFC 9110 section 8.3)."""

from __future__ import annotations

import re
from functools import lru_cache

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER = re.compile(rf"""\s*;\s*(?:({_TOKEN})=("(?:[^"\\]|\\.)*"|{_TOKEN}))?\s*""")
_UTF8 = {"utf-8", "utf8", "us-ascii"}
MAX_BYTES = 256


@lru_cache(maxsize=256)
def is_json(value: bytes) -> bool:
    """`application/json`; other parameters than `charset` say nothing about the bytes and are ignored."""
    if len(value) > MAX_BYTES:
        return False
    text = value.decode("latin-1")
    kind, mark, _ = text.partition(";")
    if kind.strip().lower() != "application/json":
        return False
    place = len(kind) if mark else len(text)
    while place < len(text):
        parameter = _PARAMETER.match(text, place)
        if parameter is None:
            return False
        name, content = parameter.groups()
        if name is not None and name.lower() == "charset" and _unquoted(content).lower() not in _UTF8:
            return False
        place = parameter.end()
    return True


def _unquoted(content: str) -> str:
    return re.sub(r"\\(.)", r"\1", content[1:-1]) if content.startswith('"') else content
