"""Answers that leave no record of their own, on their way to be counted in the trail. Knows no trail.

The parser, the start and the front door refuse before anybody is known; what they refuse while the audit log is not
open yet is kept and counted later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

PENDING = 256


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """One answer. `route` is one of our own paths or `-`, never what a caller wrote; `code` one of our own codes."""

    request_id: UUID
    status: int
    code: str
    source: str | None = None
    route: str = "-"


Count = Callable[[Unrecorded, int], None]
"""Called with an answer and how many like it there were."""


class Refusals:
    """`count` from anywhere on the event loop; `connect` once somebody keeps the counts."""

    def __init__(self) -> None:
        self._sink: Count | None = None
        self._pending: dict[tuple[int, str, str | None], tuple[Unrecorded, int]] = {}

    def count(self, answer: Unrecorded) -> None:
        if self._sink is not None:
            self._sink(answer, 1)
            return
        key = (answer.status, answer.code, answer.source)
        if key not in self._pending and len(self._pending) >= PENDING:
            key = (answer.status, answer.code, None)
        first, count = self._pending.get(key, (answer, 0))
        self._pending[key] = (first, count + 1)

    def connect(self, sink: Count) -> None:
        self._sink = sink
        pending, self._pending = self._pending, {}
        for answer, count in pending.values():
            sink(answer, count)
