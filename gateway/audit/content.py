"""Prompts and answers as they are stored: encrypted, each under a key of its own, bound to their request and tenant.

Envelope: version byte 1, 12 bytes nonce, AES-256-GCM (NIST SP 800-38D) ciphertext with its 16-byte tag, over
zlib-compressed JSON. The key is HKDF-SHA-256 (RFC 5869) of the configured key with a random 32-byte salt per envelope:
no key ever meets two nonces. Additional data: version, key id, request id, tenant and kind; what is moved to another
row cannot be opened. Pure; knows no files and no SQL.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.audit.canonical import canonical_json, parse_json
from gateway.audit.content_keys import KEY_BYTES, ContentKeys
from gateway.flow.parts import Content, message_fields, texts_of
from gateway.flow.values import ChatRequest, CompletionRequest, EmbeddingRequest, ModelRequest, ToolSpec

VERSION = b"\x01"
NONCE_BYTES, SALT_BYTES = 12, 32
MAX_BYTES = 2_900_000
"""Of one envelope: two of them, in base64, must fit into a frame of the spool."""
MAX_PLAIN_BYTES = 64 * 1024 * 1024
"""What an envelope may unpack to."""

Kind = Literal["prompt", "response", "stored"]
"""`stored`: a response that is kept for its owner, outside of the trail."""


class ContentTooLarge(Exception):
    """The envelope would not fit into the spool."""


class ContentUnreadable(Exception):
    """`reason`: `key_missing`, or `damaged` for what was changed, moved or cut."""

    def __init__(self, reason: Literal["key_missing", "damaged"]) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Sealed:
    """One encrypted text of one request."""

    kind: Kind
    key_id: str
    salt: bytes
    envelope: bytes
    expires_at: datetime

    @property
    def digest(self) -> str:
        """SHA-256 of the envelope, hexadecimal: what the hash chain holds."""
        return hashlib.sha256(self.envelope).hexdigest()


class ContentSealer:
    """Thread-safe; `seal` of a few kilobytes takes tens of microseconds."""

    def __init__(self, keys: ContentKeys, retention: timedelta) -> None:
        self._keys, self._retention = keys, retention

    def seal(
        self,
        kind: Kind,
        document: dict[str, Any],
        request_id: UUID,
        tenant: str,
        now: datetime,
        *,
        retention: timedelta | None = None,
        max_bytes: int | None = None,
    ) -> Sealed:
        """Raises `ContentTooLarge`."""
        key_id, salt, nonce = self._keys.current, secrets.token_bytes(SALT_BYTES), secrets.token_bytes(NONCE_BYTES)
        packed = zlib.compress(canonical_json(document), 1)
        if len(packed) > (max_bytes or MAX_BYTES):
            raise ContentTooLarge
        cipher = AESGCM(_derived(self._keys.keys[key_id], salt))
        envelope = VERSION + nonce + cipher.encrypt(nonce, packed, _bound(key_id, request_id, tenant, kind))
        return Sealed(kind, key_id, salt, envelope, now + (retention or self._retention))

    def open(self, sealed: Sealed, request_id: UUID, tenant: str) -> dict[str, Any]:
        """Raises `ContentUnreadable`."""
        key = self._keys.keys.get(sealed.key_id)
        if key is None:
            raise ContentUnreadable("key_missing")
        version, nonce, body = sealed.envelope[:1], sealed.envelope[1 : 1 + NONCE_BYTES], sealed.envelope[13:]
        if version != VERSION:
            raise ContentUnreadable("damaged")
        try:
            bound = _bound(sealed.key_id, request_id, tenant, sealed.kind)
            packed = AESGCM(_derived(key, sealed.salt)).decrypt(nonce, body, bound)
            return parse_json(zlib.decompressobj().decompress(packed, MAX_PLAIN_BYTES))
        except (InvalidTag, ValueError, zlib.error):
            raise ContentUnreadable("damaged") from None


def prompt_document(request: ModelRequest) -> dict[str, Any]:
    """The texts given to the model, after redaction."""
    match request:
        case ChatRequest(messages=messages, tools=tools):
            turns = [{"role": turn.role, "name": turn.name, **message_fields(turn.content)} for turn in messages]
            return {"messages": turns} | ({"tools": [_tool(tool) for tool in tools]} if tools else {})
        case EmbeddingRequest(inputs=inputs):
            return {"inputs": [one if isinstance(one, str) else list(one) for one in inputs]}
        case CompletionRequest(prompts=(prompt,)):
            return {"prompt": prompt if isinstance(prompt, str) else list(prompt)}
        case CompletionRequest(prompts=prompts):
            return {"prompt": [one if isinstance(one, str) else list(one) for one in prompts]}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}


def response_document(choices: Sequence[Content]) -> dict[str, Any]:
    """The answer by choice: its text, or a message with its fields where it is more than text."""
    return {"choices": [_said(content) for content in choices]}


def _said(content: Content) -> str | dict[str, Any]:
    fields = message_fields(content)
    text = fields["content"]
    return text if len(fields) == 1 and isinstance(text, str) else fields


def cut_response(choices: Sequence[Content]) -> dict[str, Any]:
    """Of an answer that is too large to be stored, as much of the texts of each choice as surely is not."""
    room = MAX_BYTES // (8 * max(1, len(choices)))
    return {"choices": ["".join(texts_of(content))[:room] for content in choices], "truncated": True}


def digests(sealed: Sequence[Sealed]) -> dict[str, dict[str, str]]:
    """For the hashed record."""
    return {one.kind: {"key_id": one.key_id, "sha256": one.digest} for one in sealed}


def encode_sealed(sealed: Sealed) -> dict[str, str]:
    """As it travels beside its record in the spool."""
    return {
        "kind": sealed.kind,
        "key_id": sealed.key_id,
        "salt": base64.b64encode(sealed.salt).decode(),
        "envelope": base64.b64encode(sealed.envelope).decode(),
        "expires_at": sealed.expires_at.isoformat(),
    }


def decode_sealed(item: Mapping[str, str]) -> Sealed:
    """Raises `KeyError` or `ValueError`."""
    kind: Kind = "prompt" if item["kind"] == "prompt" else "response"
    return Sealed(
        kind=kind,
        key_id=item["key_id"],
        salt=base64.b64decode(item["salt"]),
        envelope=base64.b64decode(item["envelope"]),
        expires_at=datetime.fromisoformat(item["expires_at"]),
    )


def _derived(key: bytes, salt: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=b"esclusa.content.v1").derive(key)


def _bound(key_id: str, request_id: UUID, tenant: str, kind: Kind) -> bytes:
    return orjson.dumps([1, key_id, str(request_id), tenant, kind])
