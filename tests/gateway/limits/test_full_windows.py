"""How long a window that was seen full is believed to be. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.flow.values import LimitRule, LimitVerdict
from gateway.limits.claim import BoundRule, Refusal, RuleBinder
from gateway.limits.full_windows import REMEMBER_S, FullWindows

MINUTE = LimitRule("per-user", "user", "user:acme/ana", window="minute", requests=60, tokens=900, sliding=True)
REFUSED = LimitVerdict(allowed=False, kind="requests", reason="full")


def seen(now_ms: int, used: int, previous: int, **change: Any) -> tuple[FullWindows, BoundRule]:
    """At monotonic time 0 s and wall time `now_ms`."""
    bound = RuleBinder("t").bind(MINUTE, now_ms)
    facts = {"kind": "requests", "index": 0, "used": used, "held": 0, "limit": 60, "ask": 1, "previous": previous}
    windows = FullWindows()
    windows.remember(Refusal(now_ms, **{**facts, **change}), bound, REFUSED, 0.0)
    return windows, bound


@pytest.mark.parametrize(
    ("now_ms", "used", "previous", "room_s"),
    [
        pytest.param(60_000, 1, 60, 1.001, id="nearly all of it in the window before: one leaves view a second"),
        pytest.param(90_000, 31, 60, 1.001, id="half of it"),
        pytest.param(60_000, 60, 0, 61.0, id="all of it in this window"),
        pytest.param(119_500, 60, 60, 1.5, id="shortly before the window ends"),
    ],
)
def test_a_sliding_window_is_full_until_its_weighted_use_leaves_room_for_one(
    now_ms: int, used: int, previous: int, room_s: float
) -> None:
    windows, _ = seen(now_ms, used, previous)
    told = windows.precheck([MINUTE], 0.0, store_away=True)
    assert told is not None
    assert told.retry_after_s == pytest.approx(room_s)
    assert windows.precheck([MINUTE], room_s - 0.01, store_away=True) is not None
    assert windows.precheck([MINUTE], room_s + 0.01, store_away=True) is None


def test_a_sliding_window_with_room_for_one_is_not_full_whatever_the_window_before_held() -> None:
    windows, _ = seen(90_000, 20, 60, ask=20)
    assert windows.precheck([MINUTE], 0.0, store_away=True) is None


def test_it_is_believed_for_a_moment_only_while_the_store_can_be_asked() -> None:
    windows, _ = seen(60_000, 60, 0)
    assert windows.precheck([MINUTE], REMEMBER_S - 0.01, store_away=False) is not None
    assert windows.precheck([MINUTE], REMEMBER_S, store_away=False) is None


def test_what_requests_in_flight_hold_is_not_used_up() -> None:
    windows, _ = seen(60_000, 10, 0, kind="tokens", quantity="tokens", limit=900, held=890, ask=5)
    assert windows.precheck([MINUTE], 0.0, store_away=False) is None


@pytest.mark.parametrize("change", [{"requests": 61}, {"sliding": False}, {"window": "day"}, {"tz": "Europe/Madrid"}])
def test_another_limit_under_the_same_name_is_asked_about(change: dict[str, Any]) -> None:
    windows, _ = seen(60_000, 60, 0)
    assert windows.precheck([replace(MINUTE, tokens=10)], 0.0, store_away=False) is not None
    assert windows.precheck([replace(MINUTE, **change)], 0.0, store_away=False) is None
