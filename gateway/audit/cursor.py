"""The cursor of the next page: a signed position, bound to the filter it was made for. Pure.

A cursor is `base64url(payload + MAC)`. A forged one, or one of another query, is an error and never a guess.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from gateway.errors import InvalidRequest

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAC_BYTES = 16
_PAYLOAD_BYTES = 8 + 16 + 16


@dataclass(frozen=True, slots=True)
class CursorPosition:
    """The last event of a page; the next page holds what is older."""

    ts: datetime
    event_id: UUID


def encode_cursor(key: bytes, place: CursorPosition, filter_text: str) -> str:
    micros = (place.ts - _EPOCH) // timedelta(microseconds=1)
    payload = micros.to_bytes(8, "big", signed=True) + place.event_id.bytes + _digest(filter_text)
    return base64.urlsafe_b64encode(payload + _mac(key, payload)).rstrip(b"=").decode()


def decode_cursor(key: bytes, cursor: str, filter_text: str) -> CursorPosition:
    """Raises `InvalidRequest` (400 `invalid_cursor`) for a cursor that we did not make for this filter."""
    refused = InvalidRequest(
        "The cursor is not one this query gave.",
        code="invalid_cursor",
        param="cursor",
        hint="repeat the query with the same filters and the `next_cursor` of its last page, or without a cursor",
    )
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise refused from None
    payload, mac = raw[:_PAYLOAD_BYTES], raw[_PAYLOAD_BYTES:]
    genuine = hmac.compare_digest(mac, _mac(key, payload)) and hmac.compare_digest(payload[24:], _digest(filter_text))
    if len(payload) != _PAYLOAD_BYTES or not genuine:
        raise refused
    micros = int.from_bytes(payload[:8], "big", signed=True)
    return CursorPosition(_EPOCH + timedelta(microseconds=micros), UUID(bytes=payload[8:24]))


def _digest(filter_text: str) -> bytes:
    return hashlib.sha256(filter_text.encode(errors="replace")).digest()[:16]


def _mac(key: bytes, payload: bytes) -> bytes:
    return hmac.digest(key, b"esclusa.audit.cursor\x00" + payload, "sha256")[:_MAC_BYTES]
