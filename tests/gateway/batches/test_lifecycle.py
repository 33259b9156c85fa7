"""When a batch ends, what an answer means for its line, and how long a batch waits."""

from __future__ import annotations

import pytest

from gateway.batches.lifecycle import AWAY, LONGEST_PAUSE_S, MAX_ATTEMPTS, Verdict, duration_s, end_of, verdict_of
from gateway.batches.values import LineAnswer, Status
from tests.gateway.batches.conftest import refusal


@pytest.mark.parametrize(
    ("status", "expired", "waiting", "running", "end"),
    [
        ("in_progress", False, 3, 1, None),
        ("in_progress", False, 0, 1, None),
        ("in_progress", False, 0, 0, "completed"),
        ("in_progress", True, 0, 0, "completed"),
        ("in_progress", True, 0, 1, "expired"),
        ("cancelling", False, 3, 1, None),
        ("cancelling", True, 3, 0, "cancelled"),
        ("validating", False, 0, 0, None),
        ("validating", True, 0, 0, "expired"),
        ("completed", True, 0, 0, None),
    ],
)
def test_a_batch_ends_when_nothing_is_left_or_its_time_is_over(
    status: Status, expired: bool, waiting: int, running: int, end: Status | None
) -> None:
    assert end_of(status, expired=expired, waiting=waiting, running=running) == end


@pytest.mark.parametrize(
    ("answer", "attempts", "verdict"),
    [
        (LineAnswer(200, "r", b"{}"), 1, Verdict("done")),
        (refusal(400, "invalid_value"), 1, Verdict("failed")),
        (refusal(403, "model_not_permitted"), 1, Verdict("failed")),
        (refusal(401, "token_revoked"), 1, Verdict("failed", refused=True)),
        (refusal(429, "tokens_rate_limited", retry_after="7"), 1, Verdict("again", 7.0, counts=False)),
        (refusal(429, "budget_exceeded", retry_after="40000"), 9, Verdict("again", LONGEST_PAUSE_S, counts=False)),
        (refusal(429, "budget_exceeded", retry_after="soon"), 1, Verdict("again", 5.0, counts=False)),
        (refusal(502, "upstream_failed"), 1, Verdict("again", 5.0)),
        (refusal(502, "upstream_failed"), 3, Verdict("again", 20.0)),
        (refusal(502, "upstream_failed"), MAX_ATTEMPTS, Verdict("failed")),
        (refusal(503, "guardrails_unavailable"), MAX_ATTEMPTS, Verdict("failed")),
        *((refusal(503, code), MAX_ATTEMPTS, Verdict("again", 5.0, counts=False)) for code in sorted(AWAY)),
    ],
)
def test_an_answer_is_a_result_or_a_reason_to_wait(answer: LineAnswer, attempts: int, verdict: Verdict) -> None:
    assert verdict_of(answer, attempts) == verdict


@pytest.mark.parametrize(
    ("limit", "remaining", "reset", "pause_s"),
    [
        ("60", "30", "40s", 0.0),
        ("60", "14", "40s", 40.0),
        ("60", "0", "1m30s", 90.0),
        ("60", "0", "3h", 0.0),
        ("60", "-", "40s", 0.0),
    ],
)
def test_a_batch_leaves_a_quarter_of_a_short_window_to_its_caller(
    limit: str, remaining: str, reset: str, pause_s: float
) -> None:
    headers = {
        "x-ratelimit-limit-requests": limit,
        "x-ratelimit-remaining-requests": remaining,
        "x-ratelimit-reset-requests": reset,
    }
    assert verdict_of(LineAnswer(200, "r", b"{}", headers), 1) == Verdict("done", pause_s)


def test_durations_are_read_as_the_headers_write_them() -> None:
    assert [duration_s(text) for text in ("1m30s", "250ms", "2h", "1.5s", "", "x")] == [90, 0.25, 7200, 1.5, 0, 0]
