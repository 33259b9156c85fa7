"""The last good policy on local disk, for a start or a life without the database. One checksummed file, one writer.

Knows neither the meaning of a policy nor when it is too old; the service decides that.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gateway.access.history.versions import Author, NewVersion, StoredVersion
from gateway.storage.local_copy import LocalCopy

FILE_NAME = "policy-snapshot.json"


@dataclass(frozen=True, slots=True)
class SavedPolicy:
    """`confirmed_at`: last time that the database said that this version is in force."""

    stored: StoredVersion
    confirmed_at: datetime


class SnapshotFile:
    def __init__(self, folder: Path) -> None:
        self._copy = LocalCopy(folder / FILE_NAME, what="the policy")

    def save(self, saved: SavedPolicy) -> None:
        content = asdict(saved.stored.content)
        self._copy.save(
            json.dumps(
                {
                    "version": saved.stored.version,
                    "created_at": saved.stored.created_at.isoformat(),
                    "confirmed_at": saved.confirmed_at.isoformat(),
                    "content": content,
                },
                sort_keys=True,
            )
        )

    def load(self) -> SavedPolicy | None:
        """None when there is no file, or when it is not exactly what was written."""
        text = self._copy.load()
        if text is None:
            return None
        try:
            body = json.loads(text)
            content = body["content"]
            content["author"] = _author(content["author"])
            content["approver"] = _author(content["approver"]) if content["approver"] else None
            content["known_models"] = tuple(content["known_models"])
            stored = StoredVersion(body["version"], NewVersion(**content), datetime.fromisoformat(body["created_at"]))
            return SavedPolicy(stored, datetime.fromisoformat(body["confirmed_at"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            self._copy.refuse()
            return None


def _author(data: dict[str, Any]) -> Author:
    return Author(**{**data, "people": tuple(data.get("people", ()))})
