from __future__ import annotations

import pytest

from engine.errors import EngineFault
from engine.requests import FinishReason
from engine.sequence import Sequence, Status
from engine.step import SampledToken, StepResult
from tests.fakes.engines import Rig, sequence
from tests.fakes.runner import FakeRunner


def outputs(items: list[Sequence]) -> list[list[int]]:
    return [item.token_ids[item.num_prompt_tokens :] for item in items]


def batch(count: int, *, prompt: int = 9, max_tokens: int = 12) -> list[Sequence]:
    """The same prompts each time: tokens depend on the index alone."""
    return [sequence([(i * 13 + k) % 250 for k in range(prompt + i)], max_tokens=max_tokens) for i in range(count)]


def run(items: list[Sequence], **changes: object) -> list[list[int]]:
    rig = Rig(**changes)  # type: ignore[arg-type]
    rig.add(*items)
    rig.run()
    assert rig.scheduler.kv.pool.num_free == rig.scheduler.kv.pool.num_blocks
    return outputs(items)


def test_decodes_and_prefill_chunks_share_one_step() -> None:
    rig = Rig(max_num_batched_tokens=8)
    short, long = sequence(3, max_tokens=20), sequence(20)
    rig.add(short)
    rig.step()
    rig.add(long)
    rig.step()
    assert [(w.num_new, w.sample) for w in rig.runner.steps[-1].work] == [(1, True), (7, False)]


def test_a_decode_never_waits_behind_a_long_prefill_that_was_there_first() -> None:
    rig = Rig(max_num_batched_tokens=4)
    long, short = sequence(40), sequence(2, max_tokens=30)
    rig.add(short)
    rig.step()
    rig.add(long)
    for _ in range(5):
        rig.step()
        assert rig.runner.steps[-1].work[0].sequence is short


@pytest.mark.parametrize("budget", [1, 3, 7, 64])
def test_outputs_do_not_depend_on_the_token_budget(budget: int) -> None:
    assert run(batch(4), max_num_batched_tokens=budget) == run(batch(4), max_num_batched_tokens=512)


@pytest.mark.parametrize("threshold", [1, 5])
def test_a_long_prefill_is_cut_to_its_threshold(threshold: int) -> None:
    rig = Rig(long_prefill_token_threshold=threshold)
    rig.add(sequence(20))
    rig.step()
    assert rig.runner.steps[-1].work[0].num_new == threshold


def test_prefill_beside_decodes_is_capped_and_alone_it_is_not() -> None:
    rig = Rig(prefill_tokens_beside_decode=4)
    rig.add(sequence(6, max_tokens=50))
    rig.step()
    assert rig.runner.steps[-1].num_tokens == 6
    rig.add(sequence(9), sequence(9))
    rig.step()
    assert [w.num_new for w in rig.runner.steps[-1].work] == [1, 4]


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
@pytest.mark.parametrize("caching", [True, False])
def test_preemption_changes_no_output(policy: str, caching: bool) -> None:
    expected = run(batch(4), num_blocks=64)
    items = batch(4)
    rig = Rig(num_blocks=7, scheduling_policy=policy, enable_prefix_caching=caching)
    rig.add(*items)
    rig.run()
    assert rig.scheduler.num_preemptions > 0
    assert outputs(items) == expected


def test_a_preempted_sequence_is_recomputed_with_its_output_and_keeps_its_counters() -> None:
    items = batch(3, prompt=8, max_tokens=16)
    rig = Rig(num_blocks=8)
    rig.add(*items)
    while not any(item.preemptions for item in items):
        rig.step()
    victim = next(item for item in items if item.preemptions)
    assert victim.status is Status.WAITING
    assert victim.num_output > 0
    known = victim.num_tokens
    first_token_at = victim.first_token_at
    while victim.status is Status.WAITING:
        rig.step()
    assert victim.num_tokens >= known
    assert victim.first_token_at == first_token_at
    assert rig.runner.steps[-1].work[-1].fresh


def test_hits_of_its_own_blocks_after_preemption_are_not_counted_as_cached() -> None:
    items = batch(4)
    rig = Rig(num_blocks=7)
    rig.add(*items)
    rig.run()
    assert sum(item.preemptions for item in items) > 0
    assert all(item.num_cached == 0 for item in items)


def test_nobody_is_admitted_in_a_step_that_preempted() -> None:
    rig = Rig(num_blocks=8, max_num_seqs=2, scheduling_policy="priority", enable_prefix_caching=False)
    first, victim = sequence(8, max_tokens=20, priority=0), sequence(16, max_tokens=20, priority=5)
    rig.add(first, victim)
    rig.step()
    small = sequence(2, max_tokens=2, priority=1)
    rig.add(small)
    while not victim.preemptions:
        rig.step()
    assert [work.sequence for work in rig.runner.steps[-1].work] == [first]
    rig.step()
    assert small.status is Status.RUNNING


def test_two_long_prompts_are_not_admitted_by_chunk_into_a_pool_that_holds_one() -> None:
    rig = Rig(num_blocks=10, max_num_batched_tokens=8, long_prefill_token_threshold=4)
    rig.add(sequence(24, max_tokens=1), sequence(24, max_tokens=1))
    rig.run()
    assert rig.scheduler.num_preemptions == 0


def test_a_long_prompt_waits_until_all_of_it_fits_and_is_then_never_preempted() -> None:
    rig = Rig(num_blocks=10, max_num_batched_tokens=8, long_prefill_token_threshold=4)
    small = [sequence(4, max_tokens=8) for _ in range(3)]
    long = sequence(30, max_tokens=4)
    rig.add(*small, long)
    rig.run()
    assert long.preemptions == 0
    assert long.finish_reason is FinishReason.LENGTH


def test_a_pool_that_holds_one_sequence_serves_them_one_by_one() -> None:
    items = batch(4, prompt=9, max_tokens=6)
    rig = Rig(num_blocks=5)
    rig.add(*items)
    rig.run()
    assert outputs(items) == run(batch(4, prompt=9, max_tokens=6))


def test_a_request_that_waits_for_a_prefix_being_computed_hits_it_instead_of_computing_it_again() -> None:
    prompt = list(range(24))
    rig = Rig(max_num_batched_tokens=16)
    first, second = sequence(prompt), sequence(prompt)
    rig.add(first, second)
    rig.run()
    assert (first.num_cached, second.num_cached) == (0, 20)
    assert rig.runner.num_tokens < 24 + 24


def test_who_waits_for_a_prefix_does_not_block_who_comes_after() -> None:
    prompt = list(range(24))
    rig = Rig(max_num_batched_tokens=16, long_prefill_token_threshold=8)
    first, second, other = sequence(prompt), sequence(prompt), sequence(4)
    rig.add(first, second, other)
    rig.step()
    assert [w.sequence for w in rig.runner.steps[-1].work] == [first, other]


def test_the_share_limit_on_running_sequences_holds_and_blocks_nobody_else() -> None:
    rig = Rig(max_seqs_per_share=2)
    mine = [sequence(3, share_key="a", max_tokens=9) for _ in range(4)]
    other = sequence(3, share_key="b", max_tokens=9)
    rig.add(*mine, other)
    rig.step()
    assert rig.scheduler.running == [mine[0], mine[1], other]
    rig.run()
    assert all(item.finish_reason is FinishReason.LENGTH for item in [*mine, other])


def test_the_share_limit_on_blocks_preempts_inside_the_share_only() -> None:
    rig = Rig(max_blocks_per_share=5)
    mine = [sequence(4, share_key="a", max_tokens=12) for _ in range(3)]
    other = sequence(4, share_key="b", max_tokens=12)
    rig.add(*mine, other)
    while rig.scheduler.has_work:
        rig.step()
        held = sum(len(item.block_table) for item in rig.scheduler.running if item.share_key == "a")
        assert held <= 5
    assert other.preemptions == 0


def test_deadlines_end_waiting_and_running_sequences_with_their_reason() -> None:
    rig = Rig(max_num_seqs=1)
    running, waiting = sequence(3, max_tokens=50, deadline_s=3.0), sequence(3, deadline_s=3.0)
    rig.add(running, waiting)
    for _ in range(3):
        rig.step()
    assert rig.scheduler.take_ended() == [running, waiting]
    assert {running.finish_reason, waiting.finish_reason} == {FinishReason.DEADLINE}
    assert not rig.scheduler.has_work


def test_deadlines_of_the_dead_are_forgotten_long_before_they_pass() -> None:
    rig = Rig()
    for _ in range(500):
        rig.add(sequence(3, max_tokens=1, deadline_s=1e9))
        rig.run()
    assert len(rig.scheduler._deadlines) <= 64
    late = sequence(3, max_tokens=50, deadline_s=rig.now + 3)
    rig.add(late)
    rig.run()
    assert late.finish_reason is FinishReason.DEADLINE


@pytest.mark.parametrize("moment", ["waiting", "prefill", "decode", "preempted", "finished", "between"])
def test_finishing_is_idempotent_in_every_state(moment: str) -> None:
    rig = Rig(num_blocks=7, max_num_batched_tokens=6)
    items = batch(4)
    target = items[0] if moment != "preempted" else items[-1]
    rig.add(*items)
    if moment == "prefill":
        rig.step()
    elif moment == "decode":
        while target.num_output < 2:
            rig.step()
    elif moment == "preempted":
        while not any(item.preemptions and item.status is Status.WAITING for item in items):
            rig.step()
        target = next(item for item in items if item.preemptions and item.status is Status.WAITING)
    elif moment == "finished":
        while target.status is not Status.FINISHED:
            rig.step()
    elif moment == "between":
        step = rig.scheduler.schedule(1.0)
        result = rig.runner.execute(step)
        assert rig.scheduler.finish(target, FinishReason.ABORT)
        rig.scheduler.update(step, result, 1.0)
    ended_now = rig.scheduler.finish(target, FinishReason.ABORT)
    assert ended_now == (moment not in ("finished", "between"))
    assert not rig.scheduler.finish(target, FinishReason.ABORT)
    rig.scheduler.check_integrity()
    rig.run()
    assert rig.scheduler.kv.pool.num_free == 7


def test_a_row_fault_ends_only_its_sequence() -> None:
    rig = Rig()
    good, bad = sequence(3), sequence(3)
    rig.runner.row_faults[bad.request_id] = ValueError("row")
    rig.add(good, bad)
    rig.run()
    assert (good.finish_reason, bad.finish_reason) == (FinishReason.LENGTH, FinishReason.ERROR)


def test_the_blocks_of_a_sequence_that_failed_are_served_to_nobody() -> None:
    rig = Rig()
    prompt = list(range(20))
    bad = sequence(prompt, max_tokens=9)
    rig.add(bad)
    rig.step()
    rig.runner.row_faults[bad.request_id] = ValueError("not finite")
    rig.run()
    again = sequence(prompt)
    rig.add(again)
    rig.run()
    assert again.num_cached == 0


def test_a_missing_sample_is_the_fault_of_its_sequence() -> None:
    rig = Rig()
    item = sequence(3)
    rig.add(item)
    step = rig.scheduler.schedule(1.0)
    (advance,) = rig.scheduler.update(step, StepResult(), 1.0)
    assert isinstance(advance.error, EngineFault)
    assert item.finish_reason is FinishReason.ERROR


def test_a_slot_is_reported_free_once_and_before_it_is_used_again() -> None:
    rig = Rig(max_num_seqs=1)
    first, second = sequence(3, max_tokens=1), sequence(3, max_tokens=1)
    rig.add(first, second)
    rig.run()
    assert [step.freed_slots for step in rig.runner.steps] == [(), (0,)]
    assert rig.runner.steps[1].work[0].fresh


def test_eos_counts_only_after_min_tokens() -> None:
    runner = FakeRunner(num_blocks=64, next_token=lambda *_: 256)
    rig = Rig(runner=runner)
    item = sequence(3, max_tokens=10, min_tokens=4)
    rig.add(item)
    rig.run()
    assert (item.num_output, item.finish_reason, item.stop_reason) == (5, FinishReason.STOP, None)


def test_ignore_eos_runs_to_max_tokens() -> None:
    rig = Rig(runner=FakeRunner(num_blocks=64, next_token=lambda *_: 256))
    item = sequence(3, max_tokens=10, ignore_eos=True)
    rig.add(item)
    rig.run()
    assert (item.num_output, item.finish_reason) == (10, FinishReason.LENGTH)


def test_a_stop_token_id_ends_with_itself_as_the_reason() -> None:
    rig = Rig(runner=FakeRunner(num_blocks=64, next_token=lambda *_: 7))
    item = sequence(3, max_tokens=10, stop_token_ids=(7,))
    rig.add(item)
    rig.run()
    assert (item.num_output, item.finish_reason, item.stop_reason) == (1, FinishReason.STOP, 7)


def test_a_suspect_shares_no_step_and_changes_no_output() -> None:
    items = batch(5)
    for item in items[1:3]:
        item.suspect = True
    rig = Rig(max_num_batched_tokens=16)
    rig.add(*items)
    rig.run()
    for step in rig.runner.steps:
        requests = {work.sequence.request_id for work in step.work}
        assert len(requests) == 1 or not requests & {item.request_id for item in items[1:3]}
    assert outputs(items) == run(batch(5))


def test_integrity_finds_a_sequence_that_holds_a_stranger_s_block() -> None:
    rig = Rig()
    item = sequence(6)
    rig.add(item)
    rig.step()
    item.block_table.append(40)
    with pytest.raises(RuntimeError):
        rig.scheduler.check_integrity()


def test_an_update_for_a_finished_sequence_is_ignored() -> None:
    rig = Rig()
    item = sequence(3)
    rig.add(item)
    step = rig.scheduler.schedule(1.0)
    rig.scheduler.finish(item, FinishReason.ABORT)
    assert rig.scheduler.update(step, StepResult(tokens={0: SampledToken(1)}), 1.0) == []
    assert item.num_output == 0
