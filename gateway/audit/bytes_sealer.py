"""Any bytes encrypted with the content keys: files of callers, results of batches. The envelope is that of `content`.

AES-256-GCM with a key of its own for each envelope (HKDF-SHA-256 with a random salt); the name of what it holds is
additional data, so that an envelope that is moved cannot be opened. Pure; knows no files and no SQL.
"""

from __future__ import annotations

import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.audit.content import NONCE_BYTES, SALT_BYTES, VERSION, ContentUnreadable
from gateway.audit.content_keys import KEY_BYTES, ContentKeys

_HEAD = len(VERSION) + NONCE_BYTES


class BytesSealer:
    """Thread-safe."""

    def __init__(self, keys: ContentKeys) -> None:
        self._keys = keys

    def seal(self, content: bytes, name: str) -> tuple[str, bytes, bytes]:
        """Key id, salt, envelope."""
        key_id, salt, nonce = self._keys.current, secrets.token_bytes(SALT_BYTES), secrets.token_bytes(NONCE_BYTES)
        cipher = AESGCM(_derived(self._keys.keys[key_id], salt))
        return key_id, salt, VERSION + nonce + cipher.encrypt(nonce, content, _bound(key_id, name))

    def open(self, key_id: str, salt: bytes, envelope: bytes, name: str) -> bytes:
        """Raises `ContentUnreadable`."""
        key = self._keys.keys.get(key_id)
        if key is None:
            raise ContentUnreadable("key_missing")
        nonce = envelope[len(VERSION) : _HEAD]
        try:
            if not envelope.startswith(VERSION):
                raise ValueError
            return AESGCM(_derived(key, salt)).decrypt(nonce, envelope[_HEAD:], _bound(key_id, name))
        except (InvalidTag, ValueError):
            raise ContentUnreadable("damaged") from None


def _derived(key: bytes, salt: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=b"esclusa.files.v1").derive(key)


def _bound(key_id: str, name: str) -> bytes:
    return f"1\n{key_id}\n{name}".encode()
