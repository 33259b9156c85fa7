"""The position of a page of the trail, sealed and bound to the filter it was made for. Pure.

A forged position, or one of another query, is an error and never a guess.
`gateway.storage.pagination` makes it a cursor.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAC_BYTES = 16
_PAYLOAD_BYTES = 8 + 16 + 16


@dataclass(frozen=True, slots=True)
class CursorPosition:
    """The last event of a page; the next page holds what is older."""

    ts: datetime
    event_id: UUID


def seal(key: bytes, place: CursorPosition, filter_text: str) -> bytes:
    micros = (place.ts - _EPOCH) // timedelta(microseconds=1)
    payload = micros.to_bytes(8, "big", signed=True) + place.event_id.bytes + _digest(filter_text)
    return payload + _mac(key, payload)


def unseal(key: bytes, sealed: bytes, filter_text: str) -> CursorPosition:
    """Raises `ValueError` for a position that we did not seal for this filter."""
    payload, mac = sealed[:_PAYLOAD_BYTES], sealed[_PAYLOAD_BYTES:]
    genuine = hmac.compare_digest(mac, _mac(key, payload)) and hmac.compare_digest(payload[24:], _digest(filter_text))
    if len(payload) != _PAYLOAD_BYTES or not genuine:
        raise ValueError
    micros = int.from_bytes(payload[:8], "big", signed=True)
    return CursorPosition(_EPOCH + timedelta(microseconds=micros), UUID(bytes=payload[8:24]))


def _digest(filter_text: str) -> bytes:
    return hashlib.sha256(filter_text.encode(errors="replace")).digest()[:16]


def _mac(key: bytes, payload: bytes) -> bytes:
    return hmac.digest(key, b"esclusa.audit.cursor\x00" + payload, "sha256")[:_MAC_BYTES]
