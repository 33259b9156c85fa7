"""The last good list of revocations and the keys in use on local disk, for a life or a start without the database.

Owns their form. Holds keyed hashes of keys, never a key. Whether they are too old is decided by whoever loads them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from gateway.identity.api_keys import ApiKeyRecord, disk_key
from gateway.identity.revocations import SavedRevocations
from gateway.settings import IdentitySettings
from gateway.storage.local_copy import LocalCopy


@dataclass(frozen=True, slots=True)
class SavedKey:
    confirmed_at: datetime
    record: ApiKeyRecord


@dataclass(frozen=True, slots=True)
class _KeyOnDisk:
    """`digest` as text, because JSON has no bytes."""

    confirmed_at: datetime
    record: ApiKeyRecord
    digest: str


class IdentityCopies:
    """Two files in `folder`, authenticated with a key made from the pepper where there is one."""

    def __init__(self, folder: Path, settings: IdentitySettings) -> None:
        key = disk_key(settings)
        self._revocations = LocalCopy(folder / "revocations.json", what="the revocations", key=key)
        self._keys = LocalCopy(folder / "api-keys.json", what="the API keys in use", key=key)
        self._of_revocations = TypeAdapter(SavedRevocations)
        self._of_keys = TypeAdapter(list[_KeyOnDisk])

    def save_revocations(self, saved: SavedRevocations) -> None:
        self._revocations.save(self._of_revocations.dump_json(saved).decode())

    def load_revocations(self) -> SavedRevocations | None:
        text = self._revocations.load()
        try:
            return None if text is None else self._of_revocations.validate_json(text)
        except ValidationError:
            self._revocations.refuse()
            return None

    def save_keys(self, saved: Iterable[SavedKey]) -> None:
        plain = [
            _KeyOnDisk(one.confirmed_at, replace(one.record, digest=b""), one.record.digest.hex()) for one in saved
        ]
        self._keys.save(self._of_keys.dump_json(plain).decode())

    def load_keys(self) -> list[SavedKey]:
        text = self._keys.load()
        try:
            found = [] if text is None else self._of_keys.validate_json(text)
            return [SavedKey(one.confirmed_at, replace(one.record, digest=bytes.fromhex(one.digest))) for one in found]
        except ValueError:  # a `ValidationError` is one too
            self._keys.refuse()
            return []
