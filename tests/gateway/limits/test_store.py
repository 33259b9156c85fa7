"""The scripts on a real Valkey: all windows or none, exact settlement, the server's clock."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
import redis.asyncio

from gateway.flow.context import SystemClock
from gateway.flow.values import LimitRule
from gateway.limits.claim import Grant, Refusal, Settlement, Tally
from gateway.limits.store import StoreUnavailable, ValkeyStore
from gateway.storage.valkey import ValkeyLink
from tests.fakes.limit_claims import claim, rule


async def tally(store: ValkeyStore, *rules: LimitRule) -> Tally:
    return (await store.read(rules))[0][1]


async def reserve(store: ValkeyStore, number: int, *rules: LimitRule, **changes: int) -> Grant | Refusal:
    return (await store.reserve(claim(number, **changes), rules))[0]


def settlement(number: int, prompt: int = 10, output: int = 5, cost: int = 0) -> Settlement:
    return Settlement(f"claim-{number}", prompt, output, cost, ())


async def test_a_claim_is_held_in_every_window(store: ValkeyStore) -> None:
    rules = [rule("minute", tokens=1000), rule("month", window="month", tokens=1000, cost_micro=100)]
    outcome = await reserve(store, 1, *rules, fixed_cost=10_000_000, price_out=500_000)
    assert isinstance(outcome, Grant)
    tallies = [found for _, found in await store.read(rules)]
    assert tallies == [Tally(held_in=10, held_out=20, held_cost=20)] * 2


async def test_a_refusal_in_one_window_takes_nothing_from_the_others(store: ValkeyStore) -> None:
    wide, full = rule("wide", tokens=1000, requests=10), rule("full", window="day", tokens=5)
    assert isinstance(await reserve(store, 1, wide, full), Refusal)
    assert await tally(store, wide) == Tally()


async def test_settling_replaces_the_claim_by_what_was_used(store: ValkeyStore) -> None:
    limit = rule(tokens=1000, concurrent=2)
    await reserve(store, 1, limit)
    assert await store.settle(settlement(1, 10, 7, 3)) is True
    assert await tally(store, limit) == Tally(used_in=10, used_out=7, used_cost=3)


async def test_settling_twice_books_once(store: ValkeyStore) -> None:
    limit = rule(tokens=1000)
    await reserve(store, 1, limit)
    await store.settle(settlement(1))
    assert await store.settle(settlement(1)) is False
    assert await tally(store, limit) == Tally(used_in=10, used_out=5)


async def test_requests_are_counted_up_to_the_limit(store: ValkeyStore) -> None:
    limit = rule(requests=3, window="day")
    outcomes = [await reserve(store, number, limit) for number in range(4)]
    assert [isinstance(outcome, Grant) for outcome in outcomes] == [True, True, True, False]
    assert isinstance(outcomes[3], Refusal)
    assert (outcomes[3].kind, outcomes[3].used, outcomes[3].limit) == ("budget", 3, 3)


async def test_requests_at_once_are_counted_until_they_settle(store: ValkeyStore) -> None:
    limit = rule(concurrent=2)
    await reserve(store, 1, limit)
    await reserve(store, 2, limit)
    refusal = await reserve(store, 3, limit)
    assert isinstance(refusal, Refusal)
    assert refusal.kind == "concurrency"
    await store.settle(settlement(1))
    assert isinstance(await reserve(store, 4, limit), Grant)


async def test_a_budget_clamps_the_output_to_what_it_still_allows(store: ValkeyStore) -> None:
    outcome = await reserve(store, 1, rule("month", window="month", tokens=25))
    assert isinstance(outcome, Grant)
    assert (outcome.output_tokens, outcome.clamped_by) == (15, 0)


async def test_a_money_budget_clamps_to_what_it_can_pay(store: ValkeyStore) -> None:
    limit = rule("month", window="month", cost_micro=10)
    outcome = await reserve(store, 1, limit, fixed_cost=1_000_000, price_out=900_000)
    assert isinstance(outcome, Grant)
    assert outcome.output_tokens == 10  # 1 for the prompt, 9 for ten tokens
    assert (await tally(store, limit)).held_cost == 10


async def test_a_clamp_is_shared_evenly_between_choices(store: ValkeyStore) -> None:
    outcome = await reserve(store, 1, rule("month", window="month", tokens=25), choices=4)
    assert isinstance(outcome, Grant)
    assert outcome.output_tokens == 12


async def test_an_unclamped_grant_names_no_rule(store: ValkeyStore) -> None:
    outcome = await reserve(store, 1, rule("month", window="month", tokens=30))
    assert isinstance(outcome, Grant)
    assert (outcome.output_tokens, outcome.clamped_by) == (20, None)


async def test_a_rate_window_makes_a_long_answer_wait_instead_of_cutting_it_to_a_stub(store: ValkeyStore) -> None:
    limit = rule(tokens=200)
    await reserve(store, 1, limit, prompt_tokens=150, output_tokens=0)
    refusal = await reserve(store, 2, limit, output_tokens=500)
    assert isinstance(refusal, Refusal)
    assert (refusal.kind, refusal.ask) == ("tokens", 74)


async def test_a_first_request_fits_a_window_smaller_than_its_max_tokens(store: ValkeyStore) -> None:
    outcome = await reserve(store, 1, rule(tokens=40), output_tokens=4096)
    assert isinstance(outcome, Grant)
    assert outcome.output_tokens == 30


async def test_prompt_and_output_tokens_have_limits_of_their_own(store: ValkeyStore) -> None:
    assert isinstance(await reserve(store, 1, rule("in", tokens_in=9)), Refusal)
    outcome = await reserve(store, 2, rule("out", window="day", tokens_out=8))
    assert isinstance(outcome, Grant)
    assert outcome.output_tokens == 8


async def test_a_spent_budget_is_told_before_a_full_rate_window(store: ValkeyStore) -> None:
    rules = [rule("minute", requests=0), rule("month", window="month", tokens=1)]
    refusal = await reserve(store, 1, *rules)
    assert isinstance(refusal, Refusal)
    assert (refusal.kind, refusal.index) == ("budget", 1)


async def test_headroom_names_the_tightest_rule_of_each_kind(store: ValkeyStore) -> None:
    rules = [rule("a", tokens=1000, requests=5), rule("b", window="day", tokens=100, requests=50)]
    outcome = await reserve(store, 1, *rules)
    assert isinstance(outcome, Grant)
    assert outcome.requests is not None
    assert outcome.tokens is not None
    assert (outcome.requests.index, outcome.requests.remaining) == (0, 4)
    assert (outcome.tokens.index, outcome.tokens.remaining) == (1, 70)


async def test_rules_past_their_first_warning_are_named_with_their_share(store: ValkeyStore) -> None:
    rules = [rule("a", window="day", tokens=40, warn_at=(0.5, 0.7)), rule("b", window="day", tokens=40, warn_at=(0.8,))]
    outcome = await reserve(store, 1, *rules)
    assert isinstance(outcome, Grant)
    assert outcome.filled == ((0, 0.75),)


async def test_a_sliding_window_remembers_the_one_before(store: ValkeyStore, valkey: redis.asyncio.Redis) -> None:
    limit = rule(requests=10, window_s=10**8, sliding=True)
    (bound, _), *_ = await store.read([limit])
    assert bound.previous_key is not None
    left = 1 - (SystemClock().now().timestamp() * 1000 - bound.window.start_ms) / bound.window.length_ms
    await valkey.hset(bound.previous_key, "r", str(round(9.5 / left)))
    assert isinstance(await reserve(store, 1, limit), Grant)
    refusal = await reserve(store, 2, limit)
    assert isinstance(refusal, Refusal)
    assert refusal.previous == round(9.5 / left)


async def test_an_expired_claim_is_freed_and_a_late_settlement_still_books(
    store: ValkeyStore, valkey: redis.asyncio.Redis, prefix: str
) -> None:
    limit = rule(tokens=1000, concurrent=1)
    await reserve(store, 1, limit)
    await valkey.zadd(f"{{{prefix}}}:leases", {"claim-1": 0})
    assert await store.sweep(10) == 1
    assert await tally(store, limit) == Tally()
    assert await store.settle(settlement(1, 10, 5)) is True
    assert await store.settle(settlement(1, 10, 5)) is False
    assert await tally(store, limit) == Tally(used_in=10, used_out=5)


async def test_the_next_request_frees_expired_claims_without_waiting_for_the_sweeper(
    store: ValkeyStore, valkey: redis.asyncio.Redis, prefix: str
) -> None:
    limit = rule(concurrent=1)
    await reserve(store, 1, limit)
    await valkey.zadd(f"{{{prefix}}}:leases", {"claim-1": 0})
    assert isinstance(await reserve(store, 2, limit), Grant)


async def test_claims_and_counters_of_other_versions_are_settled(
    store: ValkeyStore, valkey: redis.asyncio.Redis, prefix: str
) -> None:
    limit = rule(tokens=1000, concurrent=1)
    (bound, _), *_ = await store.read([limit])
    assert bound.concurrency_key is not None
    await valkey.hset(bound.key, mapping={"r": 0, "hi": 10, "ho": 20})  # a version that counts no money
    await valkey.incr(bound.concurrency_key)
    record = "return redis.call('HSET', KEYS[1], 'claim-1', cmsgpack.pack({10, 20, 4, {KEYS[2]}, {KEYS[3]}}))"
    await valkey.eval(record, 3, f"{{{prefix}}}:lease", bound.key, bound.concurrency_key)
    assert await store.settle(settlement(1, 10, 7, 3)) is True
    assert await tally(store, limit) == Tally(used_in=10, used_out=7, used_cost=3)


async def test_a_lease_record_keeps_the_places_that_other_versions_read(
    store: ValkeyStore, valkey: redis.asyncio.Redis, prefix: str
) -> None:
    limit = rule(tokens=1000, concurrent=1)
    await reserve(store, 1, limit, fixed_cost=4_000_000)
    (bound, _), *_ = await store.read([limit])
    assert bound.concurrency_key is not None
    places = "local r = cmsgpack.unpack(redis.call('HGET', KEYS[1], 'claim-1')) return {r[1], r[2], r[3], r[4], r[5]}"
    record = await valkey.eval(places, 1, f"{{{prefix}}}:lease")
    assert record == [10, 20, 4, [bound.key.encode()], [bound.concurrency_key.encode()]]


async def test_an_amount_beyond_64_bits_is_still_counted(store: ValkeyStore) -> None:
    assert isinstance(await reserve(store, 1, rule(cost_micro=10), fixed_cost=10**30), Refusal)


async def test_a_renewed_lease_is_not_swept(store: ValkeyStore, valkey: redis.asyncio.Redis, prefix: str) -> None:
    await reserve(store, 1, rule(tokens=1000))
    await valkey.zadd(f"{{{prefix}}}:leases", {"claim-1": 0})
    assert await store.renew(["claim-1", "never-seen"], 120_000) == 1
    assert await store.sweep(10) == 0


async def test_a_claim_granted_elsewhere_is_charged_once(store: ValkeyStore) -> None:
    limit = rule(tokens=1000, requests=5)
    bound = store.binder.bind(limit, int(SystemClock().now().timestamp() * 1000))
    unseen = Settlement("local-1", 10, 5, 2, (bound,), unseen=True)
    assert [await store.settle(unseen) for _ in range(2)] == [True, False]
    assert await tally(store, limit) == Tally(requests=1, used_in=10, used_out=5, used_cost=2)


async def test_a_reset_forgets_what_was_used_and_keeps_what_is_held(store: ValkeyStore) -> None:
    limit = rule(tokens=1000, requests=5)
    await reserve(store, 1, limit)
    await reserve(store, 2, limit)
    await store.settle(settlement(1))
    await store.reset([limit])
    assert await tally(store, limit) == Tally(held_in=10, held_out=20)
    await store.settle(settlement(2, 10, 9))
    assert await tally(store, limit) == Tally(used_in=10, used_out=9)


async def test_lost_scripts_are_loaded_again(store: ValkeyStore, valkey: redis.asyncio.Redis) -> None:
    await valkey.script_flush()
    assert isinstance(await reserve(store, 1, rule(tokens=1000)), Grant)


async def test_two_scopes_that_look_alike_do_not_share_a_counter(store: ValkeyStore) -> None:
    one, other = rule("a b", requests=1), replace(rule("a"), scope_key="b user:acme/a", requests=1)
    assert isinstance(await reserve(store, 1, one), Grant)
    assert isinstance(await reserve(store, 2, other), Grant)


async def test_counters_leave_by_themselves_after_their_window(store: ValkeyStore, valkey: redis.asyncio.Redis) -> None:
    limit = rule(tokens=1000, window_s=10, concurrent=3)
    await reserve(store, 1, limit)
    (bound, _), *_ = await store.read([limit])
    assert bound.concurrency_key is not None
    assert 120_000 < await valkey.pttl(bound.key) <= 3 * 120_000 + 10_000
    assert 0 < await valkey.pttl(bound.concurrency_key) <= 3 * 120_000


class SkewedClock(SystemClock):
    def __init__(self, seconds: float) -> None:
        self.by = timedelta(seconds=seconds)

    def now(self) -> datetime:
        return super().now() + self.by


@pytest.mark.parametrize("seconds", [-7200, 7200])
async def test_replicas_with_wrong_clocks_count_in_the_same_window(
    store: ValkeyStore, valkey_url: str, prefix: str, seconds: float
) -> None:
    clock = SkewedClock(0)
    skewed = ValkeyStore(ValkeyLink(valkey_url), clock=clock, prefix=prefix, timeout_s=5)
    await skewed.open()
    clock.by = timedelta(seconds=seconds)  # after the first look at the server's clock
    limit = rule(requests=1, window_s=3600)
    assert isinstance(await reserve(skewed, 1, limit), Grant)
    assert isinstance(await reserve(store, 2, limit), Refusal)
    await skewed.close()


async def test_a_store_that_was_never_opened_is_unavailable(valkey_url: str, prefix: str) -> None:
    closed = ValkeyStore(ValkeyLink(valkey_url), clock=SystemClock(), prefix=prefix)
    with pytest.raises(StoreUnavailable):
        await reserve(closed, 1, rule(requests=1))
