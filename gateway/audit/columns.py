"""The mapping between a spooled record and its table row, in both directions. Pure.

The columns are an index of `rec`, never more than it: `verify` derives them again and compares.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from gateway.audit.canonical import parse_json, storable
from gateway.audit.content import Sealed, decode_sealed, encode_sealed
from gateway.audit.segment import Frame

DERIVED = (
    "ts",
    "event_id",
    "request_id",
    "phase",
    "schema_version",
    "node_id",
    "boot_id",
    "tenant",
    "issuer",
    "principal_type",
    "client_id",
    "department",
    "roles",
    "credential_id",
    "route",
    "action",
    "target",
    "stream",
    "model_requested",
    "model_resolved",
    "model_served",
    "decision",
    "deny_code",
    "policy_version",
    "rule_id",
    "route_reason",
    "http_status",
    "error_code",
    "finish_reason",
    "outcome",
    "tokens_in",
    "tokens_out",
    "tokens_cached",
    "cost_micro",
    "currency",
    "total_us",
    "ttft_us",
)
"""Columns whose value follows from `rec` alone, in the order of `derive`."""

SHIPPED = (*DERIVED, "node_seq", "subject", "personal", "personal_salt", "rec", "prev_hash", "hash")
"""Columns in the order of `row`."""

CONTENT = ("event_id", "kind", "request_id", "tenant", "ciphertext", "key_id", "salt", "created_at", "expires_at")
"""Columns in the order of `content_rows`."""

_NOTHING: Mapping[str, Any] = {}


def encode_side(personal: Mapping[str, Any], salt: bytes) -> bytes:
    """The erasable values beside `rec`: the clear personal values and their salt."""
    if not personal:
        return b""
    return orjson.dumps({"personal": personal, "salt": base64.b64encode(salt).decode()})


def with_contents(side: bytes, sealed: Sequence[Sealed]) -> bytes:
    """The same side with encrypted content beside the personal values."""
    if not sealed:
        return side
    contents = orjson.dumps([encode_sealed(one) for one in sealed])
    return b"%b%b%b}" % (side[:-1] + b"," if side else b"{", b'"contents":', contents)


def decode_side(side: bytes) -> tuple[dict[str, Any], bytes | None]:
    if not side:
        return {}, None
    document = parse_json(side)
    salt = document.get("salt")
    return document.get("personal", {}), None if salt is None else base64.b64decode(salt)


def derive(document: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values of `DERIVED`. Raises `KeyError`, `TypeError` or `ValueError` for a record it cannot read."""
    who, where = document["who"], document["where"]
    what, decision = document.get("what", _NOTHING), document["decision"]
    result, usage = document.get("result", _NOTHING), document.get("usage", _NOTHING)
    timing, admin = document.get("timing", _NOTHING), document.get("admin", _NOTHING)
    return (
        datetime.fromisoformat(document["ts"]),
        UUID(document["event_id"]),
        UUID(document["request_id"]),
        document["phase"],
        document["schema"],
        storable(document["node"]),
        UUID(document["boot"]),
        storable(who["tenant"]),
        storable(who["issuer"]),
        who["kind"],
        storable(who.get("client_id")),
        storable(who.get("department")),
        [storable(role) for role in who["roles"]],
        storable(who.get("credential_id")),
        storable(where["route"]),
        storable(what.get("action")),
        storable(admin.get("target")),
        what.get("stream"),
        storable(what.get("model_requested")),
        storable(what.get("model_resolved")),
        storable(what.get("model_served")),
        decision["effect"],
        decision.get("deny_code"),
        decision.get("policy_version"),
        storable(decision.get("rule_id")),
        storable(decision.get("route_reason")),
        result.get("status"),
        result.get("error_code"),
        result.get("finish_reason"),
        result.get("outcome"),
        usage.get("tokens_in"),
        usage.get("tokens_out"),
        usage.get("tokens_cached"),
        usage.get("cost_micro"),
        usage.get("currency"),
        timing.get("total_us"),
        timing.get("ttft_us"),
    )


def content_rows(frame: Frame) -> list[tuple[Any, ...]]:
    """The values of `CONTENT` for what travels encrypted beside a record. Raises like `derive`."""
    if b'"contents"' not in frame.side:
        return []
    document = parse_json(frame.rec)
    event_id, request_id = UUID(document["event_id"]), UUID(document["request_id"])
    tenant, made = storable(document["who"]["tenant"]), datetime.fromisoformat(document["ts"])
    found = [decode_sealed(item) for item in parse_json(frame.side).get("contents", ())]
    return [
        (event_id, one.kind, request_id, tenant, one.envelope, one.key_id, one.salt, made, one.expires_at)
        for one in found
    ]


def row(frame: Frame) -> tuple[Any, ...]:
    """The values of `SHIPPED`; `personal` is JSON text. Raises like `derive`."""
    personal, salt = decode_side(frame.side)
    return (
        *derive(parse_json(frame.rec)),
        frame.seq,
        personal.get("subject"),
        orjson.dumps(personal).decode() if personal else None,
        salt,
        frame.rec,
        frame.prev_hash,
        frame.hash,
    )
