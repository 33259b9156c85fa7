"""A text on local disk that serves while a store is away: whole or not at all, for this user alone.

Knows neither what the text means nor when it is too old. With a key the text is authenticated (HMAC-SHA256), without
one a checksum finds damage and the permissions of folder and file keep others out.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
from pathlib import Path

_log = logging.getLogger("esclusa.storage")


class LocalCopy:
    """`what` names it in the log. One writer."""

    def __init__(self, path: Path, *, what: str, key: bytes | None = None) -> None:
        self._path, self._what, self._key = path, what, key

    def save(self, body: str) -> None:
        """Atomic: a reader sees the old text or the new one. A full disk is logged, not raised: serving goes on."""
        text = json.dumps({"sha256": self._digest(body), "body": body})
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
            _log.warning("the local copy of %s could not be written: %s", self._what, error.strerror)

    def load(self) -> str | None:
        """None when there is no file, or when it is not exactly what was written."""
        try:
            outer = json.loads(self._path.read_text(encoding="utf-8"))
            body, digest = outer["body"], outer["sha256"]
            if hmac.compare_digest(self._digest(body), digest):
                return str(body)
            _log.error("the local copy of %s is damaged and will not be used", self._what)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self.refuse()
        return None

    def refuse(self) -> None:
        """Say that what was read has no usable form."""
        _log.error("the local copy of %s cannot be read and will not be used", self._what)

    def _digest(self, body: str) -> str:
        data = body.encode()
        return (hashlib.sha256(data) if self._key is None else hmac.new(self._key, data, hashlib.sha256)).hexdigest()
