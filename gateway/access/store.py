"""The last good policy on local disk, for a start or a life without the database. One checksummed file, one writer.

Knows neither the meaning of a policy nor when it is too old; the service decides that.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gateway.access.versions import Author, NewVersion, StoredVersion

FILE_NAME = "policy-snapshot.json"
_log = logging.getLogger("esclusa.policy")


@dataclass(frozen=True, slots=True)
class SavedPolicy:
    """`confirmed_at`: last time that the database said that this version is in force."""

    stored: StoredVersion
    confirmed_at: datetime


class SnapshotFile:
    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME

    def save(self, saved: SavedPolicy) -> None:
        """Atomic: a reader sees the old file or the new one. A full disk is logged, not raised: serving goes on."""
        content = asdict(saved.stored.content)
        body = json.dumps(
            {
                "version": saved.stored.version,
                "created_at": saved.stored.created_at.isoformat(),
                "confirmed_at": saved.confirmed_at.isoformat(),
                "content": content,
            },
            sort_keys=True,
        )
        text = json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "body": body})
        partial = self._path.with_suffix(".partial")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self._path)
        except OSError as error:
            _log.warning("the local policy copy could not be written: %s", error.strerror)

    def load(self) -> SavedPolicy | None:
        """None when there is no file, or when it is not exactly what was written."""
        try:
            outer = json.loads(self._path.read_text(encoding="utf-8"))
            if hashlib.sha256(outer["body"].encode()).hexdigest() != outer["sha256"]:
                _log.error("the local policy copy is damaged and will not be used")
                return None
            body = json.loads(outer["body"])
            content = body["content"]
            content["author"] = _author(content["author"])
            content["approver"] = _author(content["approver"]) if content["approver"] else None
            content["known_models"] = tuple(content["known_models"])
            stored = StoredVersion(body["version"], NewVersion(**content), datetime.fromisoformat(body["created_at"]))
            return SavedPolicy(stored, datetime.fromisoformat(body["confirmed_at"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            _log.error("the local policy copy cannot be read and will not be used")
            return None


def _author(data: dict[str, Any]) -> Author:
    return Author(**{**data, "people": tuple(data.get("people", ()))})
