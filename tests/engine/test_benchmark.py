"""The engine benchmark: the workload is the same everywhere, figures are what they say, rows come from children."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from engine.benchmark.measure import Trace, first_token_times, inter_token_times, percentile
from engine.benchmark.suite import BenchmarkError, Peers, run_suite
from engine.benchmark.workload import draw
from tests.fakes.tiny_model import write_tiny_model


def test_the_workload_is_drawn_as_written_down() -> None:
    rng = random.Random(7)
    length = rng.randint(32, 256)
    ids = tuple(rng.randint(3, 49_000) for _ in range(length))
    output = rng.randint(32, 256)
    first = draw(3, 32, 256, 7)[0]
    assert (first.prompt_token_ids, first.output_tokens) == (ids, output)


def test_the_same_seed_draws_the_same_workload_and_another_does_not() -> None:
    assert draw(4, 2, 9, 0) == draw(4, 2, 9, 0)
    assert draw(4, 2, 9, 0) != draw(4, 2, 9, 1)


@pytest.mark.parametrize(("q", "expected"), [(50, 3.0), (99, 5.0), (20, 1.0)])
def test_percentiles_are_by_nearest_rank(q: float, expected: float) -> None:
    assert percentile([5.0, 1.0, 4.0, 2.0, 3.0], q) == expected


def test_no_values_have_no_percentile() -> None:
    assert percentile([], 50) is None


def test_times_between_tokens_leave_the_first_one_out() -> None:
    traces = [Trace(0.0, [1.0, 1.5, 2.5]), Trace(0.0, [])]
    assert first_token_times(traces) == [1.0]
    assert inter_token_times(traces) == [0.5, 1.0]


def test_an_unknown_peer_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BenchmarkError, match="hf-static"):
        run_suite({"model": "x"}, ("tgi",), Peers(), repeats=1, say=lambda _: None)


def test_a_peer_without_its_path_says_which_flag_is_missing(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="--llama-server"):
        run_suite(small_job(tmp_path), ("llama-cpp",), Peers(scratch=tmp_path), repeats=1, say=lambda _: None)


def test_every_asked_token_is_produced_and_counted(tmp_path: Path) -> None:
    job = small_job(tmp_path)
    report = run_suite(job, (), Peers(scratch=tmp_path), repeats=1, say=lambda _: None)
    workload = draw(job["requests"], job["min_len"], job["max_len"], job["seed"])
    assert report["output_tokens"] == sum(request.output_tokens for request in workload)
    assert 0 <= report["kv_waste_fraction"] < 1
    assert report["output_tokens_per_s"] > 0
    assert report["machine"]["cores"] >= 1


def small_job(folder: Path) -> dict[str, Any]:
    write_tiny_model(folder / "model", vocab_size=49_152)  # the workload's ids reach 49,000
    return {
        "model": str(folder / "model"),
        "requests": 4,
        "min_len": 4,
        "max_len": 12,
        "seed": 0,
        "dtype": "float32",
        "max_model_len": 256,
        "kv_cache_bytes": 1 << 24,
    }
