"""One row for a request, joined from its intent and its last record: what an auditor reads first. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from gateway.audit.canonical import parse_json

_LEFT_OUT = ("ts", "phase", "target", "ingested_at", "node_id", "event_id")


def request_views(events: Iterable[Mapping[str, Any]], records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """`events` are the last records as they are listed, `records` all records of their requests, oldest first."""
    first: dict[UUID, Mapping[str, Any]] = {}
    last: dict[UUID, Mapping[str, Any]] = {}
    for record in records:
        first.setdefault(record["request_id"], record)
        last[record["event_id"]] = record
    return [_view(event, first[event["request_id"]], last[event["event_id"]]) for event in events]


def _view(event: Mapping[str, Any], began: Mapping[str, Any], ended: Mapping[str, Any]) -> dict[str, Any]:
    document = parse_json(ended["rec"])
    decision, what = document.get("decision", {}), document.get("what", {})
    clear = ended["personal"] or {}  # until it is erased
    shown = {name: value for name, value in event.items() if name not in _LEFT_OUT}
    return {
        "began_at": began["ts"],
        "ended_at": event["ts"],
        **shown,
        "purpose": clear.get("purpose", what.get("purpose")),
        "data_class": clear.get("data_class", decision.get("data_class", what.get("data_class"))),
        "policy_reason": clear.get("policy_reason", decision.get("policy_reason")),
        "policy_sha256": decision.get("policy_sha256"),
        "content_level": document.get("content", {}).get("level"),
        "intent_event_id": began["event_id"] if began["phase"] == "intent" else None,
        "event_id": event["event_id"],
    }
