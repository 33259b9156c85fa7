"""Answers that have no record of their own, counted: refusals before anybody is known, paths and lists that are read.

Counts live in memory until they are drained, for seconds; knows no records and no I/O. Bounded whatever comes.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from uuid import UUID

from gateway.audit.flood import Bulk

MAX_KINDS = 256
"""Kinds of answers, by source, that are told apart between two drains; beyond, sources are counted together."""
MAX_NOTED = 10_000


class Tally:
    """`note` a request that has a record; `add` what an answer was. One that was noted is not counted again."""

    def __init__(self) -> None:
        self._noted: dict[UUID, None] = {}
        self._kinds: dict[tuple[str | None, str, str, int], Bulk] = {}

    def note(self, request_id: UUID) -> None:
        if len(self._noted) >= MAX_NOTED:  # requests that were never answered
            del self._noted[next(iter(self._noted))]
        self._noted[request_id] = None

    def add(
        self, request_id: UUID, status: int, code: str, source: str | None, route: str, now: datetime, count: int = 1
    ) -> None:
        if request_id in self._noted:
            del self._noted[request_id]
            return
        key = (source, route, code, status)
        if key not in self._kinds and len(self._kinds) >= MAX_KINDS:
            source, route = None, "-"
            key = (source, route, code, status)
        known = self._kinds.get(key)
        fresh = Bulk(code, status, count, now, now, request_id, source, route)
        self._kinds[key] = fresh if known is None else replace(known, count=known.count + count, last=now)

    def drain(self) -> tuple[Bulk, ...]:
        """The counts since the last call."""
        kinds, self._kinds = self._kinds, {}
        return tuple(kinds.values())
