"""Calendar windows in local time and sliding windows, without any store."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.flow.values import LimitRule
from gateway.limits.windows import carried_over, is_rate, sliding_wait_ms, window_at

HOUR_MS = 3_600_000
ZONES = ["UTC", "Europe/Madrid", "America/Santiago", "America/Havana", "America/Sao_Paulo", "Pacific/Apia",
         "Asia/Kathmandu", "Australia/Lord_Howe", "America/Asuncion", "Africa/Casablanca"]  # fmt: skip


def of(window: str = "minute", *, tz: str = "UTC", window_s: int | None = None, sliding: bool = False) -> LimitRule:
    return LimitRule("r", "user", "u", window=window, tz=tz, window_s=window_s, sliding=sliding)  # type: ignore[arg-type]


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def test_a_minute_starts_on_the_minute() -> None:
    window = window_at(of(), ms("2026-11-30T10:15:42.500+00:00"))
    assert (window.start_ms, window.end_ms) == (ms("2026-11-30T10:15:00+00:00"), ms("2026-11-30T10:16:00+00:00"))


def test_a_window_in_seconds_is_aligned_to_the_epoch() -> None:
    window = window_at(of(window_s=7), 20_999)
    assert (window.start_ms, window.end_ms) == (14_000, 21_000)


def test_a_day_belongs_to_its_zone() -> None:
    window = window_at(of("day", tz="America/Bogota"), ms("2026-12-01T03:00:00+00:00"))
    assert window.id == "d2026-11-30"
    assert window.end_ms == ms("2026-12-01T05:00:00+00:00")


@pytest.mark.parametrize(
    ("day", "hours"), [("2026-03-29", 23), ("2026-03-30", 24), ("2026-10-25", 25), ("2026-10-26", 24)]
)
def test_a_day_in_madrid_is_as_long_as_the_clock_says(day: str, hours: int) -> None:
    window = window_at(of("day", tz="Europe/Madrid"), ms(f"{day}T12:00:00+00:00"))
    assert window.length_ms == hours * HOUR_MS


def test_a_midnight_that_does_not_exist_starts_when_the_clock_jumps() -> None:
    # In Santiago the clock went from 23:59:59 to 01:00:00 on 6 September 2026.
    window = window_at(of("day", tz="America/Santiago"), ms("2026-09-06T12:00:00-03:00"))
    assert window.start_ms == ms("2026-09-06T04:00:00+00:00")
    assert window.length_ms == 23 * HOUR_MS


def test_a_midnight_that_happens_twice_starts_at_the_first() -> None:
    # In Havana the hour after midnight is repeated when summer time ends.
    window = window_at(of("day", tz="America/Havana"), ms("2026-11-01T12:00:00-05:00"))
    assert window.start_ms == ms("2026-11-01T04:00:00+00:00")
    assert window.length_ms == 25 * HOUR_MS


@pytest.mark.parametrize(
    ("now", "start", "end"),
    [
        ("2026-12-31T23:30:00+00:00", "2026-12-31T23:00:00+00:00", "2027-01-31T23:00:00+00:00"),
        ("2028-02-29T12:00:00+00:00", "2028-01-31T23:00:00+00:00", "2028-02-29T23:00:00+00:00"),
        ("2026-03-31T21:59:59+00:00", "2026-02-28T23:00:00+00:00", "2026-03-31T22:00:00+00:00"),
    ],
)
def test_a_month_in_madrid_ends_at_its_own_midnight(now: str, start: str, end: str) -> None:
    window = window_at(of("month", tz="Europe/Madrid"), ms(now))
    assert (window.start_ms, window.end_ms) == (ms(start), ms(end))


@given(
    now=st.integers(946_684_800_000, 2_051_222_400_000),
    tz=st.sampled_from(ZONES),
    span=st.sampled_from(["day", "month"]),
)
def test_windows_tile_time_in_every_zone(now: int, tz: str, span: str) -> None:
    rule, now_ms = of(span, tz=tz), now
    window = window_at(rule, now_ms)
    assert window.contains(now_ms)
    following = window_at(rule, window.end_ms)
    assert following.start_ms == window.end_ms
    assert following.id != window.id
    assert window_at(rule, window.end_ms - 1) == window


def test_only_windows_shorter_than_a_day_are_rates() -> None:
    rules = [of(), of(window_s=3600), of(window_s=86_400), of("day"), of("month")]
    assert [is_rate(rule) for rule in rules] == [True, True, False, False, False]


def test_the_previous_window_fades_out_evenly() -> None:
    window = window_at(of(window_s=60, sliding=True), 0)
    assert [carried_over(100, window, now) for now in (0, 15_000, 30_000, 59_999)] == [100, 75, 50, 0]


@given(
    limit=st.integers(1, 1000),
    current=st.integers(0, 1000),
    previous=st.integers(0, 2000),
    ask=st.integers(1, 1000),
    now_ms=st.integers(0, 59_999),
)
def test_waiting_as_told_makes_room_in_a_sliding_window(
    limit: int, current: int, previous: int, ask: int, now_ms: int
) -> None:
    rule = of(window_s=60, sliding=True)
    window = window_at(rule, now_ms)
    ask = min(ask, limit)
    then = now_ms + sliding_wait_ms(limit, current, previous, ask, window, now_ms)
    later = window_at(rule, then)
    if later == window:
        taken = current + carried_over(previous, later, then)
    elif later.start_ms == window.end_ms:
        taken = carried_over(current, later, then)
    else:
        taken = 0
    assert taken + ask <= limit
