"""The strict door in front of the JWT library: bytes in, a parsed but unverified compact JWS out.

Owns syntax only (RFC 7515 section 3.1, RFC 8725 section 2): sizes, alphabet, canonical base64url, header shape. Every
check here is cheap and allocates no more than the size caps. Knows no keys, no providers and no meaning of claims.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

from gateway.errors import Unauthenticated
from gateway.identity.strict_json import StrictJsonError, parse_object

MAX_HEADER_CHARS = 4096
MAX_HEADER_DEPTH = 8
MAX_CLAIMS_DEPTH = 16
MAX_KID_CHARS = 256

# An empty payload or signature passes this door so that `alg: none` can be named as such further on.
_COMPACT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*")
_UNSUPPORTED = ("crit", "b64", "zip")
_KEY_HINTS = ("jwk", "jku", "x5u", "x5c", "x5t", "x5t#S256")
_HINT = "send a signed JWT in compact form, exactly as your identity provider issued it"


@dataclass(frozen=True, slots=True)
class CompactJws:
    """A compact JWS whose syntax is beyond doubt and whose content is not trusted at all."""

    header: dict[str, Any] = field(repr=False)
    algorithm: str
    kid: str | None
    payload: bytes = field(repr=False)
    signing_input: bytes = field(repr=False)
    signature: bytes = field(repr=False)
    findings: tuple[str, ...] = ()
    """Header members that tried to bring their own key; ignored, but worth an audit row."""


def malformed(detail: str) -> NoReturn:
    raise Unauthenticated("The token is not a well-formed signed JWT.", hint=_HINT, detail=detail)


def parse_compact(token: str, *, max_bytes: int) -> CompactJws:
    """Split and decode `token` (at most `max_bytes` characters). Raises `Unauthenticated` `invalid_token`.

    Five segments (JWE) are refused: nothing here decrypts or inflates.
    """
    if len(token) > max_bytes:
        malformed("token too long")
    if not token.isascii() or _COMPACT.fullmatch(token) is None:
        malformed("not three base64url segments")
    head, body, tail = token.split(".")
    if len(head) > MAX_HEADER_CHARS:
        malformed("header too long")
    header = _json(_decode(head, "header"), MAX_HEADER_DEPTH, "header")
    algorithm = header.get("alg")
    if not isinstance(algorithm, str):
        malformed("alg is not a string")
    return CompactJws(
        header=header,
        algorithm=algorithm,
        kid=_check_header(header),
        payload=_decode(body, "payload"),
        signing_input=token[: len(head) + 1 + len(body)].encode("ascii"),
        signature=_decode(tail, "signature"),
        findings=tuple(name for name in _KEY_HINTS if name in header),
    )


def parse_claims(payload: bytes) -> dict[str, Any]:
    """The payload as a strict JSON object. Raises `Unauthenticated` `invalid_token`."""
    return _json(payload, MAX_CLAIMS_DEPTH, "payload")


def _check_header(header: dict[str, Any]) -> str | None:
    for name in _UNSUPPORTED:
        if name in header:
            malformed(f"header member {name} is not supported")
    for name in ("typ", "cty"):
        if name in header and not isinstance(header[name], str):
            malformed(f"header member {name} is not a string")
    if "cty" in header:
        malformed("nested tokens are not supported")
    if "kid" not in header:
        return None
    kid = header["kid"]
    if not isinstance(kid, str) or not 1 <= len(kid) <= MAX_KID_CHARS:
        malformed("kid is not a string of 1 to 256 characters")
    return kid


def _json(raw: bytes, max_depth: int, what: str) -> dict[str, Any]:
    try:
        return parse_object(raw, max_depth=max_depth)
    except StrictJsonError as error:
        malformed(f"{what}: {error}")


def _decode(segment: str, what: str) -> bytes:
    """Canonical base64url only: no padding, no stray bits in the last character (RFC 4648 section 3.5)."""
    if len(segment) % 4 == 1:
        malformed(f"{what}: not base64url")
    try:
        decoded = base64.urlsafe_b64decode(segment + "=" * (-len(segment) % 4))
    except binascii.Error:
        malformed(f"{what}: not base64url")
    if base64.urlsafe_b64encode(decoded).rstrip(b"=").decode("ascii") != segment:
        malformed(f"{what}: not canonical base64url")
    return decoded
