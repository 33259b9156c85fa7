"""The pure ends of the limiter: headers, errors, sentences, the breaker and the pending queue."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.flow.values import Estimate, Headroom, LimitRule, LimitVerdict, ModelCard, Reservation
from gateway.limits.breaker import FIRST_PAUSE_S, LONGEST_PAUSE_S, Breaker
from gateway.limits.claim import MICRO, Refusal, Settlement, claim_for
from gateway.limits.denial import denial
from gateway.limits.headers import duration_text, ratelimit_headers
from gateway.limits.local import share_of
from gateway.limits.messages import money_text, refusal_text
from gateway.limits.settlements import PendingSettlements
from gateway.limits.windows import Window

ROOM = Headroom(60, 59, 12.2, 1000, 970, 61)
NOW = datetime(2026, 11, 30, tzinfo=UTC)


def no(**changes: object) -> LimitVerdict:
    fields: dict[str, object] = {"allowed": False, "kind": "requests", "reason": "Full.", "retry_after_s": 12.2}
    return LimitVerdict(**{**fields, **changes})  # type: ignore[arg-type]


def test_headers_have_openais_names_and_durations() -> None:
    assert ratelimit_headers(LimitVerdict(allowed=True, headroom=ROOM)) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "13s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "970",
        "x-ratelimit-reset-tokens": "1m1s",
    }


def test_a_kind_that_nothing_limits_has_no_headers() -> None:
    assert ratelimit_headers(LimitVerdict(allowed=True)) == {}


def test_retry_after_is_rounded_up_and_only_on_a_refusal() -> None:
    assert ratelimit_headers(no())["retry-after"] == "13"
    assert ratelimit_headers(no(retry_after_s=0.01))["retry-after"] == "1"
    assert "retry-after" not in ratelimit_headers(LimitVerdict(allowed=True, retry_after_s=3))


def test_a_reservation_carries_its_warnings_and_its_degraded_state() -> None:
    reservation = Reservation("i", 1, 0, 1, NOW, warnings=("a is at 80 %", "b is at 95 %"), degraded=True)
    headers = ratelimit_headers(reservation)
    assert headers == {"x-esclusa-limits": "degraded", "x-esclusa-limit-warning": "a is at 80 %; b is at 95 %"}


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0s"), (0.2, "1s"), (59, "59s"), (360, "6m0s"), (3605, "1h0m5s"), (90_000, "25h0m0s")]
)
def test_durations_read_like_openais(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("kind", "status", "error_type", "code"),
    [
        ("requests", 429, "rate_limit_exceeded", "requests_rate_limited"),
        ("tokens", 429, "rate_limit_exceeded", "tokens_rate_limited"),
        ("concurrency", 429, "rate_limit_exceeded", "requests_rate_limited"),
        ("budget", 429, "insufficient_quota", "budget_exceeded"),
        ("store", 503, "server_error", "limits_unavailable"),
    ],
)
def test_each_kind_of_refusal_has_its_error(kind: str, status: int, error_type: str, code: str) -> None:
    error = denial(no(kind=kind))
    assert (error.status, error.type, error.code) == (status, error_type, code)
    assert error.message == "Full."
    assert error.hint
    assert int(error.headers["retry-after"]) > 0


def test_a_spent_budget_tells_clients_not_to_retry() -> None:
    assert denial(no(kind="budget", retry_after_s=86_400)).headers["x-should-retry"] == "false"


def test_a_permission_is_not_an_error() -> None:
    with pytest.raises(ValueError, match="refusal"):
        denial(LimitVerdict(allowed=True))


@pytest.mark.parametrize(
    ("micro", "text"),
    [(0, "0.00 EUR"), (2_000_000_000, "2,000.00 EUR"), (1_500_000, "1.50 EUR"), (1, "0.000001 EUR")],
)
def test_money_keeps_what_matters(micro: int, text: str) -> None:
    assert money_text(micro, "EUR") == text


def test_a_money_refusal_states_used_held_limit_and_reset_in_local_time() -> None:
    limit = LimitRule("m", "department", "d", window="month", tz="Europe/Madrid", cost_micro=20_000_000)
    refusal = Refusal(0, "budget", 0, 19_990_000, 5_000, 20_000_000, 12_000, 0, "cost_micro")
    end_ms = int(datetime(2026, 11, 30, 23, tzinfo=UTC).timestamp() * 1000)
    assert refusal_text(limit, Window("M2026-11", 0, end_ms), refusal) == (
        "The monthly limit of your department is reached: 19.99 of 20.00 EUR used, 0.005 held by requests in flight; "
        "this request needs at least 0.012. It resets at 2026-12-01T00:00:00+01:00."
    )


def test_a_concurrency_refusal_counts_running_requests() -> None:
    refusal = Refusal(0, "concurrency", 0, 4, 4, 4, 1, 0, "concurrent")
    text = refusal_text(LimitRule("c", "user", "u", concurrent=4), Window("m", 0, 1), refusal)
    assert text == "Your user already has 4 of 4 requests running."


def test_a_claim_costs_prompt_and_output_rounded_up_once() -> None:
    card = ModelCard("m", "local", price_in_micro=150_000, price_out_micro=600_000)
    claim = claim_for("i", Estimate(7, 3), card, min_grant=64, lease_ms=1)
    assert [claim.cost_micro(output) for output in (0, 1, 3)] == [2, 2, 3]


def test_an_estimate_above_the_cards_price_keeps_its_surcharge() -> None:
    card = ModelCard("m", "local", price_in_micro=MICRO, price_out_micro=MICRO)
    claim = claim_for("i", Estimate(10, 10, cost_micro=50), card, min_grant=64, lease_ms=1)
    assert (claim.cost_micro(10), claim.cost_micro(0)) == (50, 40)


def test_choices_multiply_the_output_of_a_claim() -> None:
    claim = claim_for("i", Estimate(10, 20, choices=3), ModelCard("m", "local"), min_grant=64, lease_ms=1)
    assert (claim.output_tokens, claim.choices) == (60, 3)


@pytest.mark.parametrize(("replicas", "requests"), [(1, 10), (3, 3), (100, 1)])
def test_a_replicas_share_is_never_nothing_and_never_everything(replicas: int, requests: int) -> None:
    assert share_of(LimitRule("r", "user", "u", requests=10), replicas).requests == requests


def test_a_closed_door_stays_closed_in_every_share() -> None:
    assert share_of(LimitRule("r", "user", "u", requests=0), 3).requests == 0


def test_the_breaker_opens_after_three_failures_in_a_row_that_last() -> None:
    breaker = Breaker(threshold=3, span_s=0.3)
    assert [breaker.failed(1.0), breaker.failed(1.4)] == [False, False]
    breaker.succeeded()
    assert [breaker.failed(2.0), breaker.failed(2.1), breaker.failed(2.31)] == [False, False, True]
    assert breaker.is_open
    assert breaker.wait_s(2.31) == pytest.approx(FIRST_PAUSE_S)


def test_any_number_of_failures_in_one_hiccup_leaves_the_breaker_closed() -> None:
    """A busy machine lets all requests that wait at that moment fail; the store answers the next one."""
    breaker = Breaker(threshold=3, span_s=0.3)
    for hiccup in range(20):
        assert not any(breaker.failed(hiccup + waiting / 1000) for waiting in range(250))
        breaker.succeeded()
    assert not breaker.is_open


def test_the_breaker_waits_longer_after_each_failed_probe_up_to_a_limit() -> None:
    breaker = Breaker()
    breaker.trip(0.0)
    waits = []
    for _ in range(8):
        waits.append(breaker.wait_s(0.0))
        breaker.probe_failed(0.0)
    assert waits == sorted(waits)
    assert waits[-1] == LONGEST_PAUSE_S


def test_a_closed_breaker_starts_over() -> None:
    breaker = Breaker()
    breaker.trip(0.0)
    breaker.probe_failed(0.0)
    breaker.close()
    assert not breaker.is_open
    breaker.trip(10.0)
    assert breaker.wait_s(10.0) == pytest.approx(FIRST_PAUSE_S)


def test_pending_settlements_keep_one_per_claim_and_count_what_they_drop() -> None:
    queue = PendingSettlements(most=2)
    first, again = Settlement("a", 0, 0, 0, ()), Settlement("a", 5, 5, 0, ())
    for settlement in (first, again, Settlement("b", 1, 1, 0, ()), Settlement("c", 1, 1, 0, ())):
        queue.add(settlement)
    assert [settlement.id for settlement in queue.batch(10)] == ["b", "c"]
    assert queue.dropped == 1


def test_confirming_an_older_settlement_keeps_the_newer_one() -> None:
    queue = PendingSettlements()
    older, newer = Settlement("a", 0, 0, 0, ()), Settlement("a", 5, 5, 0, ())
    queue.add(older)
    queue.add(newer)
    queue.confirm(older)
    assert queue.batch(1) == [newer]
