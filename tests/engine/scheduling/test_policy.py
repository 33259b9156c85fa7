from __future__ import annotations

import random
from statistics import quantiles
from typing import Any

import pytest

from engine.requests import FinishReason
from engine.scheduling.policy import DECODE_COST, FairShare
from engine.scheduling.waiting import WaitingQueues
from engine.sequence import Sequence, Status
from tests.fakes.engines import Rig, sequence
from tests.fakes.runner import FakeRunner

STEP_S, TOKEN_S = 0.010, 0.0004
"""A cost model like a small model's on a CPU: a fixed part for the weights and a part per token."""


class Machine(Rig):
    """A rig whose clock runs by the cost model and which counts what each share was served."""

    def __init__(self, *, speed: float = 1.0, **changes: object) -> None:
        runner = FakeRunner(num_blocks=4096, block_size=16, next_token=lambda *_: 1, max_model_len=4096)
        super().__init__(**{"runner": runner, "block_size": 16, "scheduling_policy": "fair", **changes})  # type: ignore[arg-type]
        self.served: dict[str, float] = {}
        self.speed = speed
        self.runner.keep_steps = False

    def step(self) -> None:
        step = self.scheduler.schedule(self.now)
        self.now += (STEP_S + TOKEN_S * step.num_tokens) / self.speed
        for work in step.work:
            item = work.sequence
            assert isinstance(item, Sequence)
            decodes = work.num_computed >= item.num_prompt_tokens
            cost = DECODE_COST if decodes else work.num_new
            self.served[item.share_key] = self.served.get(item.share_key, 0.0) + cost
        self.scheduler.update(step, self.runner.execute(step), self.now)


def work_of(rng: random.Random, share: str, arrived_at: float = 0.0, **fields: object) -> Sequence:
    prompt = [rng.randrange(250) for _ in range(rng.randint(32, 256))]
    return sequence(prompt, max_tokens=rng.randint(32, 128), share_key=share, arrived_at=arrived_at, **fields)


def test_two_tenants_are_served_alike_although_one_sends_ten_times_the_requests() -> None:
    rng = random.Random(1)
    machine = Machine(max_num_seqs=16, max_num_batched_tokens=256)
    heavy = [work_of(rng, "heavy") for _ in range(600)]
    light = [work_of(rng, "light") for _ in range(60)]
    machine.add(*heavy, *light)
    while any(item.status is Status.WAITING for item in light):
        machine.step()
    ratio = machine.served["heavy"] / machine.served["light"]
    assert 0.9 < ratio < 1.1, ratio


def test_weights_divide_the_machine_in_their_proportion() -> None:
    rng = random.Random(2)
    machine = Machine(max_num_seqs=16, max_num_batched_tokens=256)
    gold = [work_of(rng, "gold", share_weight=3.0) for _ in range(200)]
    machine.add(*gold, *(work_of(rng, "plain") for _ in range(200)))
    while any(item.status is Status.WAITING for item in gold):
        machine.step()
    ratio = machine.served["gold"] / machine.served["plain"]
    assert 2.7 < ratio < 3.3, ratio


def first_token_times(machine: Machine, rng: random.Random, heavy: int) -> list[float]:
    """Seconds to the first token of 60 light requests that arrive one every half second."""
    machine.add(*(work_of(rng, "heavy") for _ in range(heavy)))
    light, arrivals = list[Any](), 0
    while len(light) < 60 or any(item.first_token_at is None for item in light):
        while len(light) < 60 and machine.now >= arrivals * 0.5:
            prompt = [rng.randrange(250) for _ in range(128)]
            item = sequence(prompt, max_tokens=16, share_key="light", arrived_at=machine.now)
            machine.add(item)
            light.append(item)
            arrivals += 1
        if machine.scheduler.has_work:
            machine.step()
        else:
            machine.now = arrivals * 0.5
    return [item.first_token_at - item.arrived_at for item in light if item.first_token_at is not None]


def test_a_light_tenant_waits_at_most_twice_as_long_as_alone_on_half_the_machine() -> None:
    crowded = first_token_times(Machine(max_num_seqs=16, max_num_batched_tokens=256), random.Random(3), heavy=400)
    alone = first_token_times(Machine(speed=0.5, max_num_seqs=8, max_num_batched_tokens=256), random.Random(3), heavy=0)
    p95_crowded, p95_alone = quantiles(crowded, n=20)[-1], quantiles(alone, n=20)[-1]
    assert p95_crowded <= 2 * p95_alone, (p95_crowded, p95_alone)


def test_long_prompts_of_another_tenant_delay_a_short_one_by_a_step_or_two() -> None:
    machine = Machine(max_num_seqs=16, max_num_batched_tokens=128)
    machine.add(*(sequence(3000, share_key="heavy", max_tokens=4) for _ in range(4)))
    for _ in range(3):
        machine.step()
    short = sequence(40, share_key="light", max_tokens=4, arrived_at=machine.now)
    machine.add(short)
    machine.step()
    assert short.first_token_at is not None


def test_budget_that_waiting_requests_leave_goes_back_to_running_prefills() -> None:
    machine = Machine(max_num_seqs=2, max_num_batched_tokens=128)
    machine.runner.keep_steps = True
    machine.add(*(sequence(3000, share_key="heavy", max_tokens=4) for _ in range(3)))
    for _ in range(3):
        machine.step()
    assert [step.num_tokens for step in machine.runner.steps] == [128, 128, 128]


def test_first_come_first_served_lets_the_heavy_tenant_starve_the_light_one() -> None:
    machine = Machine(max_num_seqs=16, max_num_batched_tokens=256, scheduling_policy="fcfs")
    crowded = first_token_times(machine, random.Random(3), heavy=400)
    alone = first_token_times(Machine(speed=0.5, max_num_seqs=8, max_num_batched_tokens=256), random.Random(3), heavy=0)
    assert quantiles(crowded, n=20)[-1] > 10 * quantiles(alone, n=20)[-1]


def test_idling_earns_no_credit() -> None:
    rng = random.Random(4)
    machine = Machine(max_num_seqs=8, max_num_batched_tokens=256)
    machine.add(work_of(rng, "sleeper"))
    machine.add(*(work_of(rng, "busy") for _ in range(100)))
    for _ in range(400):
        machine.step()
    machine.served.clear()
    machine.add(*(work_of(rng, "sleeper") for _ in range(100)))
    for _ in range(600):
        machine.step()
    assert machine.served["busy"] > 0.6 * machine.served["sleeper"]


def test_a_share_of_hardly_any_weight_is_served_within_the_starvation_bound() -> None:
    rng = random.Random(5)
    machine = Machine(max_num_seqs=4, max_num_batched_tokens=64, starvation_bound_s=3.0)
    machine.add(*(work_of(rng, "rich", share_weight=1000.0) for _ in range(400)))
    poor = [work_of(rng, "poor", share_weight=0.001) for _ in range(3)]
    machine.add(*poor)
    while any(item.admitted_at is None for item in poor):
        machine.step()
    admissions = [item.admitted_at for item in poor if item.admitted_at is not None]
    waits = [b - a for a, b in zip([0.0, *admissions], admissions, strict=False)]
    assert max(waits) < 3.0 + 2.0, waits


def test_cached_and_recomputed_tokens_cost_a_share_nothing() -> None:
    machine = Machine(max_num_seqs=4)
    prompt = list(range(64))
    for _ in range(2):
        machine.add(sequence(prompt, share_key="a", max_tokens=1))
        machine.run()
    policy = machine.scheduler.policy
    assert isinstance(policy, FairShare)
    assert policy.counters["a"] == 64 + 16 + 2 * DECODE_COST


def test_a_share_without_a_slot_displaces_one_sequence_of_the_share_with_most() -> None:
    machine = Machine(max_num_seqs=2, max_num_batched_tokens=64)
    heavy = [sequence(8, share_key="heavy", max_tokens=500) for _ in range(2)]
    machine.add(*heavy)
    for _ in range(3):
        machine.step()
    light = sequence(8, share_key="light", max_tokens=4, arrived_at=machine.now)
    machine.add(light)
    machine.step()
    assert light.status is Status.RUNNING
    assert [item.preemptions for item in heavy] == [0, 1]
    machine.run()
    assert all(item.num_output == 500 for item in heavy)


def test_priority_orders_the_queue_and_picks_the_victim() -> None:
    rig = Rig(num_blocks=7, scheduling_policy="priority", max_num_seqs=2)
    low, high, late = (sequence(9, max_tokens=12, priority=p) for p in (5, 1, 0))
    rig.add(low, high, late)
    rig.step()
    assert rig.scheduler.running[0] is late
    rig.run()
    assert late.preemptions == 0
    assert late.finished_at < high.finished_at < low.finished_at  # type: ignore[operator]


def test_an_urgent_request_takes_a_slot_from_the_least_urgent_once_and_costs_it_no_token() -> None:
    rig = Rig(scheduling_policy="priority", max_num_seqs=2, starvation_bound_s=1000.0)
    batch = [sequence(5, max_tokens=30, priority=p) for p in (7, 9)]
    rig.add(*batch)
    for _ in range(4):
        rig.step()
    equal = sequence(5, max_tokens=2, priority=9)
    urgent = [sequence(5, max_tokens=20, priority=0) for _ in range(3)]
    rig.add(equal, urgent[0])
    rig.step()
    assert urgent[0].status is Status.RUNNING
    assert [item.preemptions for item in batch] == [0, 1]
    rig.add(*urgent[1:])
    rig.run()
    assert [item.preemptions for item in batch] == [1, 1]
    assert all(item.num_output == 30 for item in batch)
    last = max(item.finished_at or 0.0 for item in urgent)
    assert 0.0 < last < min(item.finished_at or 0.0 for item in [*batch, equal])


def test_priority_ages_so_that_nothing_waits_for_ever() -> None:
    rig = Rig(scheduling_policy="priority", max_num_seqs=1, starvation_bound_s=20.0)
    low = sequence(3, max_tokens=2, priority=9, share_key="low")
    rig.add(low)
    rig.step()
    rig.scheduler.finish(low, FinishReason.ABORT)
    waiting = sequence(3, max_tokens=2, priority=9, share_key="low", arrived_at=rig.now)
    rig.add(waiting)
    while waiting.admitted_at is None:
        rig.add(sequence(3, max_tokens=2, priority=0, share_key="high", arrived_at=rig.now))
        rig.step()
    assert waiting.admitted_at - waiting.arrived_at <= 24


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_every_request_ends_under_every_policy_in_a_tight_pool(policy: str) -> None:
    rng = random.Random(6)
    rig = Rig(num_blocks=12, scheduling_policy=policy)
    items = [
        sequence(
            rng.randint(1, 30), max_tokens=rng.randint(1, 16), share_key=rng.choice("abc"), priority=rng.randrange(3)
        )
        for _ in range(40)
    ]
    rig.add(*items)
    rig.run()
    assert all(item.finish_reason is FinishReason.LENGTH for item in items)


@pytest.mark.parametrize("policy", ["priority", "fair"])
def test_inside_one_share_who_has_waited_longer_than_the_bound_goes_before_the_more_urgent(policy: str) -> None:
    rig = Rig(scheduling_policy=policy, max_num_seqs=1, starvation_bound_s=20.0)
    patient = sequence(3, max_tokens=2, priority=5, share_key="one")
    rig.add(sequence(3, max_tokens=2, priority=-5, share_key="one"))
    rig.step()
    rig.add(patient)
    while patient.admitted_at is None and rig.now < 200:
        rig.add(sequence(3, max_tokens=2, priority=-5, share_key="one"))
        rig.step()
    assert patient.admitted_at is not None
    assert 20.0 < patient.admitted_at < 25.0


def test_the_oldest_of_a_share_is_found_after_aborts_admissions_and_returns() -> None:
    queues = WaitingQueues(lambda item: (item.priority, item.order))
    items = [sequence(3, priority=-number, share_key="one") for number in range(200)]
    for item in items:
        queues.push(item)
    for item in items[:50]:
        item.status = Status.FINISHED
        queues.discard(item)
    assert queues.oldest("one") is items[50]
    queues.pop(items[50])
    items[50].status = Status.RUNNING
    assert queues.oldest("one") is items[51]
    items[50].status = Status.WAITING
    queues.push(items[50])
    assert queues.oldest("one") is items[50]
    assert queues.heads() == [items[199]]
    assert len(queues) == 150
