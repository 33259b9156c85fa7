"""Records not about one running request: admin changes and reads, refusals in bulk, interrupted requests. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from gateway.audit.canonical import storable
from gateway.audit.columns import encode_side
from gateway.audit.event import Origin, Record, caller, filled, finish, head, nobody, opening, text
from gateway.audit.flood import Bulk
from gateway.audit.personal import ABOUT, about, commitments
from gateway.audit.public_path import public_etag, public_path
from gateway.audit.salts import SALTS
from gateway.errors import is_denial
from gateway.flow.values import AdminEvent, Outcome


def admin_record(origin: Origin, event_id: UUID, now: datetime, event: AdminEvent) -> Record:
    """The record of a change (`admin`) or of a read (`access`). What was typed by people is only committed to."""
    by = caller(origin, event.context, event.principal)
    before_etag = public_etag(event.before_etag)
    beside, commit = about(
        origin.key,
        {
            "target": text(event.target),
            "reason": text(event.reason),
            "approver": text(event.approver),
            "before_etag": text(event.before_etag) if before_etag is None else None,
            "diff": event.diff,
        },
    )
    document = head(origin, event_id, now, event.kind, event.context)
    document["who"] = by.who
    document["what"] = {"action": event.action}
    denied = is_denial(event.status, event.error_code)
    document["decision"] = filled(
        {
            "effect": "allow" if event.allowed else "deny" if denied else "error",
            "deny_code": event.error_code if denied and not event.allowed else None,
            "policy_version": event.policy_version,
            "rule_id": event.rule_id,
        }
    )
    document["result"] = filled({"status": event.status, "error_code": event.error_code})
    document["admin"] = filled(
        {
            "target": text(public_path(event.target)),
            "before_etag": before_etag,
            "after_etag": event.after_etag,
            "commit": commit or None,
        }
    )
    return finish(event_id, document, encode_side({**by.personal, **beside}, by.salt))


def bulk_record(origin: Origin, event_id: UUID, now: datetime, bulk: Bulk) -> Record:
    """One `aggregated` record for answers without records of their own. `request_id` is that of the first."""
    salt = SALTS.draw()
    personal = {} if bulk.source is None else {"source_ip": storable(bulk.source, 64) or ""}
    refused, denied = bulk.status >= 400, is_denial(bulk.status, bulk.code)
    outcome = Outcome.DENIED if denied else Outcome.ERROR if refused else Outcome.OK
    document = {
        **opening(origin, event_id, bulk.sample, now, "aggregated"),
        "who": nobody(origin, salt, personal),
        "where": {"route": bulk.route, "gateway_version": origin.gateway_version},
        "decision": filled(
            {
                "effect": "deny" if denied else "error" if refused else "allow",
                "deny_code": bulk.code if denied else None,
            }
        ),
        "result": filled(
            {
                "status": bulk.status,
                "error_code": bulk.code if refused else None,
                "outcome": outcome.value,
            }
        ),
        "aggregate": {"count": bulk.count, "first": bulk.first, "last": bulk.last},
    }
    return finish(event_id, document, encode_side(personal, salt))


def interrupted_record(
    origin: Origin,
    event_id: UUID,
    now: datetime,
    intent: Mapping[str, Any],
    personal: Mapping[str, Any],
    outcome: Outcome = Outcome.INTERRUPTED,
) -> Record:
    """The completion of a request that has none: its process died, or what told of its end is lost."""
    salt = SALTS.draw()
    who = {key: value for key, value in intent.get("who", {}).items() if key != "commit"}
    # What the intent says about others goes on with its own salt and the commitments in its decision.
    who["commit"] = commitments(origin.key, salt, {name: one for name, one in personal.items() if name not in ABOUT})
    # Nothing is committed to that was erased before this is written.
    decision = dict(intent.get("decision", {}))
    if not personal.keys() & ABOUT:
        decision.pop("commit", None)
    document = {
        **opening(origin, event_id, intent["request_id"], now, "completion"),
        "who": who,
        "where": {**intent.get("where", {}), "gateway_version": origin.gateway_version},
        "what": intent.get("what", {}),
        "decision": decision,
        "result": {"outcome": outcome.value},
        outcome.value: {"boot": intent["boot"], "intent": intent["event_id"], "intent_ts": intent["ts"]},
    }
    return finish(event_id, document, encode_side(personal, salt))
