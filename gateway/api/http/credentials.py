"""Find the one credential of a request. Two different ones are an error, never a choice (T2, B47)."""

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
    """Copies of one value count once, and channels without a value count only when there is nothing else.

    Raises `AmbiguousCredentials` (400) for two different ones, `Unauthenticated` (401 `missing_token`,
    `invalid_token`) for none and for a malformed one.
    """
    sent = [(CHANNELS[name], value) for name, value in headers if name in CHANNELS]
    if not sent:
        raise Unauthenticated(
            "No credential was sent.",
            code="missing_token",
            hint="send `Authorization: Bearer <token>`",
        )
    filled = [(channel, value) for channel, value in sent if not _is_empty(channel, value)] or sent[:1]
    if len({_value(channel, value) for channel, value in filled}) > 1:
        raise AmbiguousCredentials(
            "More than one credential was sent.",
            hint="send one credential; copies in `Authorization`, `x-api-key` and `api-key` must be identical",
        )
    channel, raw = min(filled, key=lambda found: found[0] != "authorization")
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


def _is_empty(channel: str, raw: bytes) -> bool:
    return not raw.strip() or (channel == "authorization" and raw.strip().lower() == b"bearer")


def _value(channel: str, raw: bytes) -> tuple[str, bytes]:
    """The value that is compared: the token of a bearer scheme, the raw value of anything else."""
    if channel != "authorization":
        return "token", raw
    scheme, _, value = raw.partition(b" ")
    return ("token", value) if scheme.lower() == b"bearer" else ("other", raw)
