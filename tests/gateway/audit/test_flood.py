"""The gate for floods: exact per source and minute, bounded in memory, nothing dropped."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from gateway.audit import flood
from gateway.audit.flood import MANY, FloodGate

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def test_a_source_is_admitted_so_many_times_a_minute() -> None:
    gate = FloodGate(per_minute=2)
    assert [gate.admits("a", at) for at in (0.0, 1.0, 2.0, 59.0, 61.0)] == [True, True, False, False, True]


def test_sources_do_not_share_their_allowance() -> None:
    gate = FloodGate(per_minute=1)
    assert [gate.admits(source, 0.0) for source in ("a", "b", "a", "b")] == [True, True, False, False]


def test_folded_refusals_are_counted_by_source_and_code_with_first_and_last() -> None:
    gate = FloodGate(per_minute=1)
    gate.admits("a", 0.0)
    for second, code in enumerate(("expired", "expired", "forged")):
        gate.fold("a", code, 401, NOW + timedelta(seconds=second), UUID(int=second))
    expired, forged = gate.drain()
    assert (expired.code, expired.count, expired.source, expired.sample) == ("expired", 2, "a", UUID(int=0))
    assert expired.last - expired.first == timedelta(seconds=1)
    assert forged.count == 1
    assert gate.drain() == ()


def test_memory_is_bounded_by_giving_newcomers_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flood, "MAX_SOURCES", 3)
    gate = FloodGate(per_minute=1)
    assert [gate.admits(source, 0.0) for source in ("a", "b", "c", "d", "e")] == [True, True, True, True, False]
    gate.fold("e", "expired", 401, NOW, UUID(int=1))
    (bulk,) = gate.drain()
    assert bulk.source is None
    assert len(gate._windows) == 4
    assert MANY in gate._windows
