from __future__ import annotations

import pytest

from engine.scheduling.pacing import Pacer
from engine.sequence import Sequence
from tests.fakes.engines import Rig, sequence
from tests.fakes.runner import FakeRunner

BASE_S, TOKEN_S = 0.010, 0.0004


def test_nothing_is_capped_before_both_kinds_of_step_were_seen() -> None:
    pacer = Pacer(3.0)
    assert pacer.most_prefill_tokens(16, 1) is None
    pacer.observe(4, 0, 0.01)
    assert pacer.most_prefill_tokens(16, 1) is None


def test_the_cap_is_what_fits_into_the_factor() -> None:
    pacer = Pacer(3.0)
    pacer.observe(16, 0, 0.010)
    pacer.observe(16, 100, 0.060)
    assert pacer.most_prefill_tokens(16, 1) == 40


def test_the_cap_grows_where_more_wait_than_decode() -> None:
    pacer = Pacer(3.0)
    pacer.observe(4, 0, 0.010)
    pacer.observe(4, 100, 0.060)
    assert pacer.most_prefill_tokens(4, 4) == 40
    assert pacer.most_prefill_tokens(4, 6) == 70


def test_nothing_is_held_back_where_twice_as_many_wait_as_decode() -> None:
    pacer = Pacer(3.0)
    pacer.observe(4, 0, 0.010)
    pacer.observe(4, 100, 0.060)
    assert pacer.most_prefill_tokens(4, 7) is not None
    assert pacer.most_prefill_tokens(4, 8) is None


def test_a_decode_counts_like_a_token_of_prefill_where_another_number_decodes_than_before() -> None:
    pacer = Pacer(3.0)
    pacer.observe(4, 0, 0.010)
    pacer.observe(0, 100, 0.050)
    assert pacer.most_prefill_tokens(4, 1) == 40
    assert pacer.most_prefill_tokens(24, 1) == 80


def test_the_cap_never_falls_below_what_is_worth_a_step() -> None:
    pacer = Pacer(1.5)
    pacer.observe(16, 0, 0.010)
    pacer.observe(0, 10, 1.0)
    assert pacer.most_prefill_tokens(16, 1) == 32


@pytest.mark.parametrize("factor", [0.0, 3.0])
def test_a_stopped_clock_or_a_factor_of_zero_caps_nothing(factor: float) -> None:
    pacer = Pacer(factor)
    pacer.observe(1, 0, 0.0 if factor else 1.0)
    pacer.observe(0, 9, 0.0 if factor else 1.0)
    assert pacer.most_prefill_tokens(16, 1) is None


def longest_gap(factor: float) -> float:
    """Two thousand prompt tokens arrive beside sixteen streams: the longest step, in steps that only decode."""
    runner = FakeRunner(num_blocks=2048, block_size=16, max_model_len=4096, next_token=lambda *_: 1)
    rig = Rig(runner=runner, block_size=16, max_num_seqs=32, max_num_batched_tokens=2048, mixed_step_factor=factor)
    streams = [sequence(32, max_tokens=400) for _ in range(16)]
    rig.add(*streams)
    gaps: list[float] = []
    long: Sequence | None = None
    for number in range(200):
        step = rig.scheduler.schedule(rig.now)
        before = rig.now
        rig.now += BASE_S + TOKEN_S * step.num_tokens
        rig.scheduler.update(step, rig.runner.execute(step), rig.now)
        if number > 50:
            gaps.append(rig.now - before)
        if number == 60:
            long = sequence(2000, max_tokens=4, arrived_at=rig.now)
            rig.add(long)
    assert long is not None
    assert long.first_token_at is not None
    return max(gaps) / (BASE_S + TOKEN_S * 16)


def test_a_long_prompt_stretches_the_time_between_tokens_to_the_factor_and_no_more() -> None:
    assert longest_gap(0.0) > 40
    assert longest_gap(3.0) < 3.1
