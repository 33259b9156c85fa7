"""Verifies that the clear values beside a record are those it commits to, or were erased as a whole. Pure.

An erasure empties subject, personal values and salt of the caller together, or everything that an administrator's
record says about somebody together, and is on record. Anything between the two states is a change that no erasure
makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.audit.canonical import CommitmentKey
from gateway.audit.personal import ABOUT, ABOUT_SALT, about_salt, commitment

OWN, ABOUT_GROUP = "own", "about"
"""The two groups of values, as records of erasures name them."""


def emptied(document: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[str]:
    """Groups of which nothing is left, though the record commits to some."""
    personal: dict[str, Any] = row["personal"] or {}
    if document.get("who", {}).get("commit") and row["subject"] is None and not personal.keys() - ABOUT:
        yield OWN
    if _about_commit(document) and not personal.keys() & ABOUT:
        yield ABOUT_GROUP


def differing(document: Mapping[str, Any], row: Mapping[str, Any], key: CommitmentKey | None) -> Iterator[str]:
    """Names of what does not fit, never values. Without `key` only what needs no key is compared."""
    personal: dict[str, Any] = dict(row["personal"] or {})
    subject, salt = row["subject"], row["personal_salt"]
    if subject is not None and personal.get("subject", subject) != subject:
        yield "subject"
    own = {name: value for name, value in personal.items() if name not in ABOUT}
    if subject is not None:
        own["subject"] = subject
    committed = dict(document.get("who", {}).get("commit", {}))
    detail = document.get("result", {}).get("detail_commit")
    if detail is not None:
        committed["error_detail"] = detail
    if "subject" in personal and subject is None:
        yield "subject: emptied alone"
    yield from _group(own, committed, salt, key)
    about = {name: value for name, value in personal.items() if name in ABOUT}
    wrapped = about.pop(ABOUT_SALT, None)
    yield from _group(about, _about_commit(document), about_salt(personal) if wrapped is not None else None, key)


def _about_commit(document: Mapping[str, Any]) -> dict[str, str]:
    return {**document.get("admin", {}).get("commit", {}), **document.get("decision", {}).get("commit", {})}


def _group(
    values: Mapping[str, Any], committed: Mapping[str, str], salt: bytes | None, key: CommitmentKey | None
) -> Iterator[str]:
    if not values:
        return
    if salt is None:
        yield f"{', '.join(sorted(values))}: without the salt"
        return
    if set(values) != set(committed):
        yield ", ".join(sorted(set(values) ^ set(committed)))
    if key is not None:
        for name in sorted(set(values) & set(committed)):
            if commitment(key, salt, name, values[name]) != committed[name]:
                yield name
