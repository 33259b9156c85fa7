"""Find the one credential of a request. Two channels, or one channel twice, is an error, never a choice (T2, B47)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from gateway.errors import AmbiguousCredentials, Unauthenticated
from gateway.flow.values import Credential

CHANNELS: dict[bytes, Literal["authorization", "x-api-key", "api-key"]] = {
    b"authorization": "authorization",
    b"x-api-key": "x-api-key",
    b"api-key": "api-key",
}


def read_credential(headers: Iterable[tuple[bytes, bytes]]) -> Credential:
    """Raises `AmbiguousCredentials` (400) or `Unauthenticated` (401 `missing_token`, `invalid_token`)."""
    found = [(CHANNELS[name], value) for name, value in headers if name in CHANNELS]
    if not found:
        raise Unauthenticated(
            "No credential was sent.",
            code="missing_token",
            hint="send `Authorization: Bearer <token>`",
        )
    if len(found) > 1:
        raise AmbiguousCredentials(
            "More than one credential was sent.",
            hint="send exactly one of `Authorization`, `x-api-key`, `api-key`, once",
        )
    channel, raw = found[0]
    try:
        text = raw.decode("ascii")
    except UnicodeDecodeError:
        raise Unauthenticated("The credential is not ASCII.") from None
    if channel != "authorization":
        return Credential(channel=channel, value=text)
    scheme, _, value = text.partition(" ")
    if scheme.lower() != "bearer" or not value or value != value.strip():
        raise Unauthenticated(
            "The `Authorization` header must be `Bearer <token>`.",
            hint="one space between the scheme and the token",
        )
    return Credential(channel=channel, value=value)
