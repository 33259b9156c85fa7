"""Lost records of a spool: the value, the record that keeps it in the trail, and the gaps it explains. Pure.

A record that cannot be read again is never passed over in silence: the trail says which numbers of which chain are
gone, and why, and `verify` tells them from records that somebody removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from gateway.audit.columns import encode_side
from gateway.audit.event import Origin, Record, filled, finish, nobody, opening
from gateway.audit.salts import SALTS
from gateway.audit.segment import SUFFIX
from gateway.audit.system_event import with_mac
from gateway.flow.values import Outcome

ACTION = "audit.damage"
"""`what.action` of the record; its phase is `admin`, its request id the boot whose chain is damaged."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes [start, end) of a segment that could not be read, and the numbers of the chain that are missing for it."""

    boot_id: UUID
    segment: int
    start: int
    end: int
    first_seq: int | None
    """The first number that is missing; None when it is not known where in the chain this was."""
    records: int | None
    """How many numbers are missing; None when nothing tells. 0: bytes were damaged, but no record."""

    @property
    def file_name(self) -> str:
        return f"{self.segment:010d}{SUFFIX}"

    def data(self) -> dict[str, Any]:
        """As JSON, in the record and in the note of the quarantine; `damage_of` reads it."""
        return {
            "boot": str(self.boot_id),
            "segment": self.segment,
            "offset": self.start,
            "bytes": self.end - self.start,
            "first_seq": self.first_seq,
            "records": self.records,
        }

    def __str__(self) -> str:
        lost = "an unknown number of records" if self.records is None else f"{self.records} records"
        from_seq = "" if self.first_seq is None or self.records == 0 else f" from number {self.first_seq}"
        where = f"{self.file_name} of boot {self.boot_id}"
        return f"{self.end - self.start} unreadable bytes at {self.start} in {where}: {lost} lost{from_seq}"


def lost_until(damages: Iterable[Damage]) -> float:
    """Every number that may be missing is below this; infinity when nobody knows. 0 without damage."""
    return max((_bound(damage) for damage in damages), default=0.0)


def covers(damages: Iterable[Damage], first: int, last: int) -> bool:
    """Whether every number from `first` to `last` is said to be lost."""
    reached = float(first)
    for damage in sorted(damages, key=lambda one: one.first_seq or 0):
        if (damage.first_seq or 0) <= reached:
            reached = max(reached, _bound(damage))
    return reached > last


def _bound(damage: Damage) -> float:
    if damage.records is None or (damage.first_seq is None and damage.records):
        return float("inf")
    return 0.0 if damage.first_seq is None or not damage.records else float(damage.first_seq + damage.records)


def damage_record(origin: Origin, event_id: UUID, now: datetime, damage: Damage) -> Record:
    salt = SALTS.draw()
    document = {
        **opening(origin, event_id, damage.boot_id, now, "admin"),
        "who": nobody(origin, salt, {}),
        "where": {"route": "-", "gateway_version": origin.gateway_version},
        "what": {"action": ACTION},
        "decision": {"effect": "error"},
        "result": {"outcome": Outcome.RECORD_LOST.value, "error_code": "audit_spool_damaged"},
        "admin": {"target": f"{damage.boot_id}/{damage.file_name}"},
        "damage": filled(damage.data()),
    }
    return finish(event_id, with_mac(origin.key, document), encode_side({}, salt))


def damage_of(document: Mapping[str, Any]) -> Damage:
    """The value that a record, or a note in the quarantine, holds. Raises `KeyError`, `TypeError` or `ValueError`."""
    kept = document["damage"]
    start = int(kept["offset"])
    return Damage(
        boot_id=UUID(kept["boot"]),
        segment=int(kept["segment"]),
        start=start,
        end=start + int(kept["bytes"]),
        first_seq=kept.get("first_seq"),
        records=kept.get("records"),
    )
