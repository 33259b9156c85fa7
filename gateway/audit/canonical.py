"""Bytes that mean one thing: canonical JSON, clean text, keyed commitments, the hash chain. Pure; knows no fields.

Canonical form after RFC 8785: keys in code-point order, no white space, UTF-8. Numbers are integers below 2**53 only,
so that no two writers can disagree about a digit; other numbers are written as text.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import orjson

from gateway.errors import ConfigError

GENESIS_LABEL = b"esclusa.audit.v1"
_SURROGATE = re.compile("[\ud800-\udfff]")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_SAFE_INTEGER = 2**53
_HASH_STEP = 2047
_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_UTC_Z


def canonical_json(document: dict[str, Any]) -> bytes:
    """Serialize once, for hashing. Lone surrogates cannot be UTF-8: they become U+FFFD and `sanitized` says so."""
    try:
        return orjson.dumps(document, option=_OPTIONS)
    except TypeError:
        return orjson.dumps({**_without_surrogates(document), "sanitized": True}, option=_OPTIONS)


def parse_json(data: bytes) -> dict[str, Any]:
    """Raises `ValueError` when `data` is no JSON object."""
    document = orjson.loads(data)
    if not isinstance(document, dict):
        raise ValueError("an audit record is a JSON object")
    return document


def exact(number: float | int | None) -> int | str | None:
    """A number that survives every JSON reader: a safe integer as it is, anything else as text."""
    if number is None:
        return None
    if isinstance(number, int) and -_SAFE_INTEGER < number < _SAFE_INTEGER:
        return int(number)
    return repr(number)


def micro(number: float | None) -> int | None:
    """Millionths, rounded; None for what is no number."""
    if number is None or number != number or number in (float("inf"), float("-inf")):
        return None
    return round(number * 1_000_000)


def storable(text: str | None, limit: int = 1024) -> str | None:
    """Text that a Postgres text or jsonb column takes: no U+0000, no surrogates, at most `limit` characters."""
    if text is None:
        return None
    text = text[:limit]
    # Most texts are plain ASCII without NUL, and both questions are answered in C.
    if text.isascii() and "\x00" not in text:
        return text
    return _UNSTORABLE.sub("\ufffd", text)


class CommitmentKey:
    """HMAC-SHA-256 (RFC 2104) over salt, field name and value; base64.

    Salted, because a subject or a short prompt is easily guessed. The two padded key blocks are hashed once and copied:
    half the time of `hmac.digest`, the same result.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        if len(key) < 16:
            raise ConfigError("the audit HMAC key is too short", hint="set at least 16 random characters")
        block = (hashlib.sha256(key).digest() if len(key) > 64 else key).ljust(64, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in block))

    def commit(self, salt: bytes, name: str, value: bytes) -> str:
        inner = self._inner.copy()
        inner.update(b"%b%b\x00%b" % (salt, name.encode(), value))
        outer = self._outer.copy()
        outer.update(inner.digest())
        return binascii.b2a_base64(outer.digest(), newline=False).decode()

    def matches(self, salt: bytes, name: str, value: bytes, commitment: str) -> bool:
        return hmac.compare_digest(self.commit(salt, name, value), commitment)


def genesis(node_id: str, boot_id: UUID) -> bytes:
    """The `prev_hash` of the first record of a boot: binds the chain to its node and boot."""
    return hashlib.sha256(b"\x00".join((GENESIS_LABEL, node_id.encode(errors="replace"), boot_id.bytes))).digest()


def chain_hash(prev_hash: bytes, node_seq: int, rec: bytes) -> bytes:
    """SHA-256 over the previous hash, the number (8 bytes, big-endian) and the record."""
    state = hashlib.sha256(b"%b%b" % (prev_hash, node_seq.to_bytes(8, "big")))
    # From 2,048 bytes on hashlib gives up the interpreter, and getting it back can cost milliseconds under load.
    for start in range(0, len(rec), _HASH_STEP):
        state.update(rec[start : start + _HASH_STEP])
    return state.digest()


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {_SURROGATE.sub("\ufffd", str(key)): _without_surrogates(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_surrogates(item) for item in value]
    return value
