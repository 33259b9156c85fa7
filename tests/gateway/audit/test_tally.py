"""Answers without a record of their own: counted by kind and source, bounded, and never twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from gateway.audit.tally import MAX_KINDS, MAX_NOTED, Tally

NOW = datetime(2026, 5, 4, tzinfo=UTC)


def test_answers_of_one_kind_are_one_count_with_the_first_as_sample() -> None:
    tally = Tally()
    for number in range(3):
        at = NOW + timedelta(seconds=number)
        tally.add(UUID(int=number), 404, "not_found", "10.0.0.1", "-", at)
    tally.add(UUID(int=9), 200, "", "10.0.0.1", "/v1/models", NOW, count=5)
    missed, listed = tally.drain()
    assert (missed.count, missed.first, missed.last) == (3, NOW, NOW + timedelta(seconds=2))
    assert (missed.sample, missed.source, missed.status) == (UUID(int=0), "10.0.0.1", 404)
    assert (listed.count, listed.route, listed.code) == (5, "/v1/models", "")
    assert tally.drain() == ()


def test_a_request_with_a_record_is_not_counted_again() -> None:
    tally = Tally()
    tally.note(UUID(int=1))
    tally.add(UUID(int=1), 403, "not_permitted", None, "-", NOW)
    assert tally.drain() == ()
    tally.add(UUID(int=1), 403, "not_permitted", None, "-", NOW)
    assert len(tally.drain()) == 1


def test_a_flood_from_many_sources_stays_bounded_and_complete() -> None:
    tally = Tally()
    for number in range(5000):
        tally.add(UUID(int=number), 431, "headers_too_large", f"10.0.{number // 250}.{number % 250}", "-", NOW)
    bulks = tally.drain()
    assert len(bulks) <= MAX_KINDS + 1
    assert sum(bulk.count for bulk in bulks) == 5000


def test_requests_that_are_never_answered_do_not_pile_up() -> None:
    tally = Tally()
    for number in range(MAX_NOTED + 50):
        tally.note(UUID(int=number))
    tally.add(UUID(int=0), 200, "", None, "-", NOW)  # forgotten
    tally.add(UUID(int=MAX_NOTED + 49), 200, "", None, "-", NOW)
    assert [bulk.count for bulk in tally.drain()] == [1]
