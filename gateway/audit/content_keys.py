"""The keys that recorded prompts and answers are encrypted with: what the setting says, parsed and checked.

One entry `<id>:<base64 of 32 bytes>` for each key, separated by white space or commas. The first encrypts; all decrypt,
so a key is rotated by putting a new one in front and kept for as long as content under it may be read.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.errors import ConfigError

KEY_BYTES = 32
HINT = "python -c \"import base64, secrets; print('k1:' + base64.b64encode(secrets.token_bytes(32)).decode())\""
_ID = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


@dataclass(frozen=True, slots=True)
class ContentKeys:
    current: str
    keys: Mapping[str, bytes] = field(repr=False)


def parse_content_keys(text: str, *, source: str) -> ContentKeys:
    """Raises `ConfigError`, which names `source` and the place of a bad entry, never its value."""
    keys: dict[str, bytes] = {}
    for number, entry in enumerate(re.split(r"[\s,]+", text.strip()), start=1):
        name, mark, value = entry.partition(":")
        try:
            key = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if not mark or not _ID.match(name) or len(key) != KEY_BYTES:
            raise ConfigError(f"{source}: entry {number} is no `<id>:<base64 of {KEY_BYTES} bytes>`", hint=HINT)
        if name in keys:
            raise ConfigError(f"{source}: entry {number} has the id of an earlier one", hint="give each key its own id")
        keys[name] = key
    return ContentKeys(next(iter(keys)), keys)


def load_content_keys(configured: str | None, file: Path | None) -> ContentKeys | None:
    """From `audit.content_keys`, else from `audit.content_key_file`; None when neither is set. Reads the file.

    Raises `ConfigError`, also for a file that everybody may read.
    """
    if configured is not None:
        return parse_content_keys(configured, source="audit.content_keys")
    if file is None:
        return None
    try:
        if file.stat().st_mode & 0o007:
            raise ConfigError("every user may read the content keys", file=str(file), hint="chmod 600 it")
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"the content keys cannot be read: {reason}", file=str(file), hint=HINT) from None
    return parse_content_keys(text, source="audit.content_key_file")
