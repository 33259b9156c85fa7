"""Values of headers, whatever they were made of. Pure."""

from __future__ import annotations

from functools import lru_cache

Headers = list[tuple[bytes, bytes]]


@lru_cache(maxsize=4096)
def header_value(text: str) -> bytes:
    """Printable ASCII on one line, whatever a policy's author wrote."""
    if text.isascii() and text.isprintable():
        return text.encode()
    return "".join(sign if sign.isprintable() else " " for sign in text).encode("ascii", "replace")
