"""The part of a path that a hashed record may keep forever: words of our own routes, numbers and UUIDs.

Everything else in a path was chosen by a person and may name one: it becomes `*` here, and the whole path goes beside
the record, where it can be erased. A word that is missing below is hidden, never shown by mistake.
"""

from __future__ import annotations

import re
from functools import lru_cache

HIDDEN = "*"
WORDS = frozenset(
    {
        "-",
        "admin",
        "all",
        "apply",
        "approve",
        "audit",
        "authz",
        "batches",
        "budgets",
        "cancel",
        "chat",
        "clear-poison",
        "compare",
        "completions",
        "count_tokens",
        "content",
        "current",
        "diff",
        "drain",
        "embeddings",
        "engines",
        "events",
        "explain",
        "files",
        "health",
        "keys",
        "livez",
        "messages",
        "metrics",
        "models",
        "openapi.json",
        "pause",
        "policies",
        "proposals",
        "readyz",
        "reject",
        "requests",
        "rerank",
        "score",
        "tokenize",
        "detokenize",
        "moderations",
        "docs",
        "v2",
        "reset",
        "responses",
        "input_items",
        "input_tokens",
        "conversations",
        "items",
        "restore",
        "resume",
        "revocations",
        "role-bindings",
        "rotate",
        "service-accounts",
        "simulate",
        "sleep",
        "tenant",
        "usage",
        "v1",
        "validate",
        "versions",
        "wake",
        "esclusa audit erase",
        "esclusa policy apply --database",
        "",
    }
)
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_ID = re.compile(rf"\A(\d{{1,10}}|{_UUID}|(?:file-|batch_|resp_|conv_)[0-9a-f]{{32}})\Z")
_ETAG = re.compile(r'\A"?v?\d{1,10}(-[0-9a-f]{12})?"?\Z')


@lru_cache(maxsize=1024)
def public_path(path: str) -> str:
    """The path without its query and without what people named."""
    return "/".join(_public(segment) for segment in path.partition("?")[0].split("/"))


def public_etag(etag: str | None) -> str | None:
    """One of our own entity tags, or None: a caller may send anything in `If-Match`."""
    return etag if etag is not None and _ETAG.match(etag) else None


def _public(segment: str) -> str:
    noun, colon, verb = segment.rpartition(":")
    if colon and verb in WORDS:
        return f"{_public(noun)}:{verb}"
    return segment if segment in WORDS or _ID.match(segment) else HIDDEN
