"""The target of a request line, read as RFC 9112 section 3.2 says. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ABSOLUTE = re.compile(rb"\Ahttps?://([^/?#@]+)(/[^?#]*)?(?:\?([^#]*))?\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Target:
    path: bytes
    query: bytes = b""
    authority: bytes | None = None
    """Of the absolute form; it stands in for `Host`."""


def read_target(raw: bytes) -> Target | None:
    """None for what is no target of a server: a fragment, user information, another scheme, anything not ASCII."""
    if b"#" in raw or not raw.isascii():
        return None
    if raw.startswith(b"/"):
        path, _, query = raw.partition(b"?")
        return Target(path, query)
    if raw == b"*":
        return Target(raw)
    absolute = _ABSOLUTE.match(raw)
    if absolute is None:
        return None
    return Target(absolute[2] or b"/", absolute[3] or b"", absolute[1])
