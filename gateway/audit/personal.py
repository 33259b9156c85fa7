"""The values of a record that may be erased, and the commitments that stand for them in the hashed record. Pure.

Two groups, each with a salt of its own, because they concern different people. Those of the `who` are the caller's own.
Those of `ABOUT` say what an administrator did, read or wrote, to whom and why, and may name anybody: they stay when the
caller is erased, and go, with their salt, when somebody they name is.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from gateway.audit.canonical import CommitmentKey, canonical_json, exact, storable
from gateway.audit.salts import SALTS

ABOUT_SALT = "about_salt"
ABOUT = frozenset({"target", "reason", "detail", "approver", "diff", "before_etag", "policy_reason", ABOUT_SALT})
LABEL_LIMIT, LABEL_NAME, LABEL_VALUE = 16, 64, 512


def commitment(key: CommitmentKey, salt: bytes, name: str, value: Any) -> str:
    """Of a text by its bytes, of anything else by its canonical JSON."""
    return key.commit(salt, name, value.encode() if isinstance(value, str) else canonical_json({name: value}))


def commitments(key: CommitmentKey, salt: bytes, personal: Mapping[str, Any]) -> dict[str, str]:
    return {name: commitment(key, salt, name, value) for name, value in personal.items()}


def about(key: CommitmentKey, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The clear values with their salt, to go beside the record, and their commitments, to go into it."""
    kept = {name: storable_json(value) for name, value in values.items() if value is not None}
    if not kept:
        return {}, {}
    salt = SALTS.draw()
    return {**kept, ABOUT_SALT: base64.b64encode(salt).decode()}, commitments(key, salt, kept)


def about_salt(personal: Mapping[str, Any]) -> bytes | None:
    """None when it was erased or is none."""
    try:
        return base64.b64decode(personal[ABOUT_SALT], validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error):
        return None


def labels(metadata: Mapping[str, str]) -> dict[str, str] | None:
    """The caller's `metadata`: untrusted labels, truncated to OpenAI's limits."""
    kept = {
        storable(name, LABEL_NAME) or "": storable(value, LABEL_VALUE) or ""
        for name, value in list(metadata.items())[:LABEL_LIMIT]
    }
    return kept or None


def storable_json(value: Any) -> Any:
    """JSON that a jsonb column gives back as it was: no floats, no U+0000, no surrogates."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return exact(value)
    if isinstance(value, Mapping):
        return {storable(str(key), 1024) or "": storable_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [storable_json(item) for item in value]
    text = str(value)
    return storable(text, len(text))
