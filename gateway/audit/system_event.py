"""Records of the trail about itself: the start of a run, seals, what was removed, refused and erased. Pure.

They are authenticated with the commitment key, which is not in the database: whoever can write to the tables and does
not have the key can neither make one nor change one. Phase `system`, tenant `-`; nothing in them is personal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from gateway.audit.canonical import CommitmentKey, canonical_json, parse_json
from gateway.audit.event import Origin, Record, finish, opening
from gateway.audit.heads import Head
from gateway.flow.values import ANONYMOUS

PHASE: Literal["system"] = "system"
START, SEAL, RETAIN = "audit.start", "audit.seal", "audit.retain"
REFUSED, ERASE = "audit.quarantine", "audit.erase"
_MAC = "mac"


def start_record(
    origin: Origin,
    event_id: UUID,
    now: datetime,
    *,
    line: UUID,
    begins: bool,
    previous: Sequence[Head],
    known: Sequence[Head] | None,
) -> Record:
    """The first record of a run. `previous`: where the earlier runs of this spool ended; with `begins` the spool was
    empty and a new line of runs begins. `known`: other runs in the database, None when it did not answer."""
    facts = {
        "line": line,
        "begins": begins,
        "previous": [head.data() for head in previous],
        "known": None if known is None else [head.data() for head in known],
    }
    return system_record(origin, event_id, now, START, facts)


def seal_record(origin: Origin, event_id: UUID, now: datetime, heads: Sequence[Head]) -> Record:
    """How far this run, first, and others have come."""
    return system_record(origin, event_id, now, SEAL, {"heads": [head.data() for head in heads]})


def refused_record(origin: Origin, event_id: UUID, now: datetime, refused: Head, error: str) -> Record:
    """Postgres refused the row `refused`, with an error of this kind, and it was put aside."""
    return system_record(origin, event_id, now, REFUSED, {"row": refused.data(), "error": error})


def tells_of_refused(rec: bytes) -> bool:
    try:
        document = parse_json(rec)
        return bool(document["phase"] == PHASE and document["what"]["action"] == REFUSED)
    except (ValueError, KeyError, TypeError):
        return False


def system_record(origin: Origin, event_id: UUID, now: datetime, action: str, facts: Mapping[str, Any]) -> Record:
    document: dict[str, Any] = {
        **opening(origin, event_id, event_id, now, PHASE),
        "who": {"tenant": ANONYMOUS.tenant, "issuer": ANONYMOUS.issuer, "kind": "system", "roles": [], "commit": {}},
        "where": {"route": "-", "gateway_version": origin.gateway_version},
        "what": {"action": action},
        "decision": {"effect": "allow"},
        "system": facts,
    }
    return finish(event_id, with_mac(origin.key, document), b"")


def with_mac(key: CommitmentKey, document: dict[str, Any]) -> dict[str, Any]:
    return {**document, _MAC: key.commit(b"", "esclusa.audit.system", canonical_json(document))}


def is_authentic(key: CommitmentKey, document: Mapping[str, Any]) -> bool:
    """Whether the record was written by a gateway that has this key."""
    mac = document.get(_MAC)
    rest = {name: value for name, value in document.items() if name != _MAC}
    return isinstance(mac, str) and key.matches(b"", "esclusa.audit.system", canonical_json(rest), mac)
