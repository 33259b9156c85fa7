"""The limiter as the pipeline sees it, on a real Valkey that works."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from gateway.errors import BudgetExceeded, RateLimited
from gateway.flow.budget import requests_only
from gateway.flow.context import SystemClock
from gateway.flow.values import LimitRule, LimitVerdict, Reservation
from gateway.limits.claim import Tally
from gateway.limits.denial import denial
from gateway.limits.service import LimitService
from tests.fakes.calendar import midnight, noon_zone
from tests.fakes.limit_claims import CARD, asking, rule, used
from tests.fakes.manual_clock import ManualClock
from tests.gateway.limits.conftest import MakeLimiter


async def ask(limiter: LimitService, *rules: LimitRule, prompt: int = 10, output: int = 20) -> LimitVerdict:
    return await limiter.reserve(rules, asking(prompt, output), CARD)


async def hold(limiter: LimitService, *rules: LimitRule, prompt: int = 10, output: int = 20) -> Reservation:
    verdict = await ask(limiter, *rules, prompt=prompt, output=output)
    assert verdict.reservation is not None
    return verdict.reservation


async def tally(limiter: LimitService, limit: LimitRule) -> Tally:
    return (await limiter.usage([limit]))[0][1]


async def test_no_limits_means_no_question_to_the_store(make_limiter: MakeLimiter) -> None:
    limiter = await make_limiter(url="redis://127.0.0.1:1", start=False)
    reservation = await hold(limiter)
    assert reservation.granted_output_tokens == 20
    await limiter.settle(reservation, used(), 0)
    assert limiter.state()["in_flight"] == 0


async def test_a_reservation_says_what_it_holds(make_limiter: MakeLimiter) -> None:
    limiter = await make_limiter(lease_s=90)
    before = SystemClock().now()
    reservation = await hold(limiter, rule(tokens=1000, requests=7))
    assert (reservation.tokens, reservation.cost_micro, reservation.store) == (30, 9, "valkey")
    assert (reservation.headroom.remaining_requests, reservation.headroom.remaining_tokens) == (6, 970)
    assert before + timedelta(seconds=89) < reservation.expires_at < before + timedelta(seconds=95)


async def test_a_request_that_settles_makes_room_for_the_next(make_limiter: MakeLimiter) -> None:
    limiter, limit = await make_limiter(), rule(window="day", tokens=40)
    reservation = await hold(limiter, limit)
    await limiter.settle(reservation, used(10, 1), 2)
    assert (await hold(limiter, limit)).granted_output_tokens == 19


async def test_a_clamped_reservation_names_the_budget(make_limiter: MakeLimiter) -> None:
    limiter = await make_limiter()
    reservation = await hold(limiter, rule("fin-month", window="month", tokens=18))
    assert (reservation.granted_output_tokens, reservation.clamped_by) == (8, "fin-month")


async def test_a_spent_budget_is_refused_with_used_limit_and_reset(make_limiter: MakeLimiter) -> None:
    zone = noon_zone()
    limiter, limit = await make_limiter(), rule(scope="department", window="month", tokens=30, tz=zone)
    await limiter.settle(await hold(limiter, limit), used(), 0)
    error = denial(await ask(limiter, limit))
    assert isinstance(error, BudgetExceeded)
    assert error.headers["x-should-retry"] == "false"
    assert "monthly limit of your department is reached: 30 of 30 tokens used" in error.message
    assert midnight(zone) in error.message
    assert int(error.headers["retry-after"]) > 0


async def test_a_budget_held_by_requests_in_flight_may_be_tried_again_soon(make_limiter: MakeLimiter) -> None:
    limiter, limit = await make_limiter(), rule(window="month", tokens=30)
    await hold(limiter, limit)
    error = denial(await ask(limiter, limit))
    assert isinstance(error, BudgetExceeded)
    assert (error.headers["x-should-retry"], error.headers["retry-after"]) == ("true", "1")


async def test_a_full_rate_window_says_when_it_resets(make_limiter: MakeLimiter) -> None:
    limiter, limit = await make_limiter(), rule(requests=1, window_s=3600)
    await hold(limiter, limit)
    verdict = await ask(limiter, limit)
    error = denial(verdict)
    assert isinstance(error, RateLimited)
    assert error.code == "requests_rate_limited"
    assert verdict.retry_after_s is not None
    assert 0 < verdict.retry_after_s <= 3600


async def test_a_prompt_larger_than_the_whole_window_is_not_told_to_wait(make_limiter: MakeLimiter) -> None:
    error = denial(await ask(await make_limiter(), rule(tokens=5)))
    assert error.code == "tokens_rate_limited"
    assert "retry-after" not in error.headers
    assert error.headers["x-should-retry"] == "false"


async def test_a_window_known_to_be_full_is_refused_without_the_store(make_limiter: MakeLimiter) -> None:
    limiter, limit = await make_limiter(), rule(requests=1, window="day")
    await hold(limiter, limit)
    assert limiter.precheck([limit]) is None
    await ask(limiter, limit)
    verdict = limiter.precheck([limit])
    assert verdict is not None
    assert (verdict.allowed, verdict.kind) == (False, "budget")


async def test_a_full_window_is_asked_about_again_after_a_moment(make_limiter: MakeLimiter) -> None:
    clock = ManualClock()
    limiter, limit = await make_limiter(clock=clock), rule(requests=1, window="month")
    await hold(limiter, limit)
    await ask(limiter, limit)
    clock.advance(2.5)
    assert limiter.precheck([limit]) is None


async def test_a_sliding_window_is_known_to_be_full_too(make_limiter: MakeLimiter) -> None:
    limiter, limit = await make_limiter(), rule(requests=2, window_s=86_400, sliding=True)
    await hold(limiter, limit)
    await hold(limiter, limit)
    await ask(limiter, limit)
    verdict = limiter.precheck([limit])
    assert verdict is not None
    assert (verdict.allowed, verdict.kind) == (False, "budget")


async def test_a_window_seen_full_by_a_count_of_requests_is_full_for_whole_requests(make_limiter: MakeLimiter) -> None:
    """The claim of a refused request leaves tokens out; what it finds holds for the rule that counts both."""
    limiter, limit = await make_limiter(), rule(requests=1, tokens=9_000, concurrent=4, window_s=3600)
    await hold(limiter, limit)
    await ask(limiter, *requests_only([limit]))
    verdict = limiter.precheck([limit])
    assert verdict is not None
    assert verdict.kind == "requests"


async def test_a_raised_limit_is_not_refused_from_memory(make_limiter: MakeLimiter) -> None:
    limiter = await make_limiter()
    await hold(limiter, rule(requests=1, window="day"))
    await ask(limiter, rule(requests=1, window="day"))
    assert limiter.precheck([rule(requests=2, window="day")]) is None


async def test_a_reset_opens_the_window_at_once(make_limiter: MakeLimiter) -> None:
    limiter, limit = await make_limiter(), rule(requests=1, window="day")
    await hold(limiter, limit)
    await ask(limiter, limit)
    await limiter.reset([limit])
    assert limiter.precheck([limit]) is None
    assert (await ask(limiter, limit)).allowed


async def test_each_warning_is_reported_once_and_told_every_time(make_limiter: MakeLimiter) -> None:
    seen: list[tuple[str, float]] = []
    limiter = await make_limiter(on_warning=lambda rule, mark: seen.append((rule.id, mark)))
    limit = rule("dept-day", scope="department", window="day", tokens=100, warn_at=(0.5, 0.8))
    warnings = []
    for _ in range(3):
        reservation = await hold(limiter, limit)
        warnings.append(reservation.warnings)
        await limiter.settle(reservation, used(10, 20), 0)
    assert warnings == [
        (),
        ("daily limit of your department is at 60 %",),
        ("daily limit of your department is at 90 %",),
    ]
    assert seen == [("dept-day", 0.5), ("dept-day", 0.8)]


async def test_a_hundred_requests_at_99_percent_of_a_budget_never_overspend(make_limiter: MakeLimiter) -> None:
    limiters = [await make_limiter() for _ in range(2)]
    limit = rule(window="month", tokens=100_000, cost_micro=40_000)
    first = await hold(limiters[0], limit, prompt=9_900, output=89_100)
    await limiters[0].settle(first, used(9_900, 89_100), 36_630)
    assert (await tally(limiters[0], limit)).used_in + (await tally(limiters[0], limit)).used_out == 99_000

    async def one(number: int) -> bool:
        limiter = limiters[number % 2]
        verdict = await ask(limiter, limit, prompt=100, output=200)
        if verdict.reservation is None:
            assert denial(verdict).code == "budget_exceeded"
            return False
        await asyncio.sleep(0.05)
        granted = verdict.reservation.granted_output_tokens
        await limiter.settle(verdict.reservation, used(100, granted), -(-(100 * 100_000 + granted * 400_000) // 10**6))
        return True

    outcomes = await asyncio.gather(*[one(number) for number in range(100)])
    end = await tally(limiters[0], limit)
    assert 1 <= sum(outcomes) < 10
    assert end.used_in + end.used_out <= 100_000
    assert end.used_cost <= 40_000
    assert (end.held_in, end.held_out, end.held_cost) == (0, 0, 0)


async def test_a_hundred_requests_at_once_get_exactly_the_requests_that_are_left(make_limiter: MakeLimiter) -> None:
    limiter, limit = await make_limiter(), rule(requests=7, window="day")
    verdicts = await asyncio.gather(*[ask(limiter, limit) for _ in range(100)])
    assert sum(verdict.allowed for verdict in verdicts) == 7


async def test_an_administrators_token_has_a_budget_like_any_other(make_limiter: MakeLimiter) -> None:
    limiter, limit = await make_limiter(), rule("admin", scope="role", window="month", tokens=9)
    assert denial(await ask(limiter, limit)).code == "budget_exceeded"


@pytest.mark.parametrize("lease_s", [0.2])
async def test_a_long_answer_keeps_its_claim_while_its_process_lives(make_limiter: MakeLimiter, lease_s: float) -> None:
    limiter, limit = await make_limiter(lease_s=lease_s, sweep_s=0.05), rule(tokens=1000, concurrent=1)
    reservation = await hold(limiter, limit)
    await asyncio.sleep(0.6)
    assert (await tally(limiter, limit)).held_out == 20
    await limiter.settle(reservation, used(), 0)
    assert await tally(limiter, limit) == Tally(used_in=10, used_out=20)


async def test_a_request_that_never_ends_loses_its_claim_after_the_longest_lease(make_limiter: MakeLimiter) -> None:
    limiter, limit = await make_limiter(lease_s=0.2, sweep_s=0.05, max_lease_s=0.3), rule(concurrent=1)
    await hold(limiter, limit)
    await asyncio.sleep(0.9)
    assert (await tally(limiter, limit)).in_flight == 0
    assert limiter.state()["in_flight"] == 0


# -------------------------------------------------------------------------------------- a spent budget of money

FREE = replace(CARD, id="free", price_in_micro=0, price_out_micro=0)


async def spend(limiter: LimitService, limit: LimitRule) -> None:
    """More than the budget: an answer that was under way when it ran out is still paid for."""
    held = await hold(limiter, limit)
    await limiter.settle(held, used(10, 20), (limit.cost_micro or 0) + 5)
    assert not (await ask(limiter, limit)).allowed


async def test_a_spent_budget_of_money_does_not_refuse_a_free_model(make_limiter: MakeLimiter) -> None:
    limiter, limit = await make_limiter(), rule(window="month", cost_micro=100)
    await spend(limiter, limit)
    assert limiter.precheck([limit]) is None
    assert (await limiter.reserve([limit], asking(10, 20), FREE)).allowed


async def test_a_refusal_names_what_this_very_request_needs(make_limiter: MakeLimiter) -> None:
    limiter, limit = await make_limiter(), rule(window="month", cost_micro=100)
    await spend(limiter, limit)
    dear, cheap = [(await ask(limiter, limit, prompt=prompt)).reason for prompt in (20_000, 10)]
    assert "this request needs at least 0.002001" in dear
    assert "this request needs at least 0.000002" in cheap


async def test_a_remembered_refusal_quotes_no_other_requests_figure(make_limiter: MakeLimiter) -> None:
    limiter, limit = await make_limiter(), rule(window="day", tokens=40)
    await limiter.settle(await hold(limiter, limit), used(10, 30), 0)
    assert "this request needs" in (await ask(limiter, limit)).reason
    remembered = limiter.precheck([limit])
    assert remembered is not None
    assert "40 of 40 tokens used. It resets at" in remembered.reason
