"""The engine benchmark: the workload is the same everywhere, figures are what they say, rows come from children."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.benchmark.child import BenchmarkError, run_child
from engine.benchmark.llama_cpp import Speed, affordable, probed_speed
from engine.benchmark.measure import (
    Trace,
    crowded_gaps,
    first_token_times,
    gaps_within,
    inter_token_times,
    percentile,
)
from engine.benchmark.memory import count_parameters, model_bytes
from engine.benchmark.suite import Peers, median_row, run_suite
from engine.benchmark.workload import BenchRequest, draw
from tests.fakes.tiny_model import write_tiny_model

FIELDS_OF_THE_BARE_COMMAND = (
    "output_tokens", "seconds", "output_tokens_per_s", "single_stream_tokens_per_s", "ttft_p50_s", "itl_p99_s",
    "kv_waste_fraction", "peak_rss_bytes", "host_ms_per_step", "ratio", "machine",
)  # fmt: skip


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
    assert 0 <= report["others_cpu_fraction"] <= 1
    for field in FIELDS_OF_THE_BARE_COMMAND:
        assert report[field] is not None, field


def test_gaps_within_a_window_are_those_that_overlap_it() -> None:
    traces = [Trace(0.0, [1.0, 2.0, 3.5, 5.0, 6.0])]
    assert gaps_within(traces, 2.5, 4.0) == [1.5, 1.5]


def test_a_gap_that_only_touches_the_window_is_left_out() -> None:
    assert gaps_within([Trace(0.0, [1.0, 2.0, 3.0])], 2.0, 3.0) == [1.0]


def test_crowded_gaps_begin_when_the_last_request_has_begun_and_end_when_the_first_has_ended() -> None:
    traces = [Trace(0.0, [1.0, 2.0, 3.0, 4.0]), Trace(0.0, [2.0, 3.0, 4.0, 6.0])]
    assert crowded_gaps(traces) == [1.0, 1.0, 1.0, 1.0]


def test_there_are_no_crowded_gaps_while_a_request_has_no_token() -> None:
    assert crowded_gaps([Trace(0.0, [1.0, 2.0]), Trace(0.0, [])]) == []


def test_the_median_row_keeps_words_counts_and_the_range_of_the_rate() -> None:
    rows = [
        {"system": "a", "output_tokens": 10, "output_tokens_per_s": 3.0, "ttft_p50_s": None},
        {"system": "a", "output_tokens": 10, "output_tokens_per_s": 1.0, "ttft_p50_s": None},
        {"system": "a", "output_tokens": 10, "output_tokens_per_s": 2.0, "ttft_p50_s": None},
    ]
    assert median_row(rows) == {
        "system": "a",
        "output_tokens": 10,
        "output_tokens_per_s": 2.0,
        "ttft_p50_s": None,
        "output_tokens_per_s_range": [1.0, 3.0],
    }


def test_the_probe_tells_prefill_from_decode() -> None:
    workload = [BenchRequest((3,) * 100, 4), BenchRequest((3,) * 300, 4)]
    traces = [Trace(0.0, [1.0, 2.5, 3.0]), Trace(0.0, [2.0, 2.5, 3.0])]
    assert probed_speed(traces, workload) == Speed(prompt_tokens_per_s=200.0, output_tokens_per_s=4.0)


def test_a_probe_that_did_not_come_to_an_end_stands_for_a_very_slow_peer() -> None:
    workload = draw(2, 4, 8, 0)
    assert probed_speed([Trace(0.0, [1.0]), Trace(0.0, [])], workload) == Speed(1.0, 1.0)


def test_the_whole_workload_is_measured_when_time_allows() -> None:
    workload = draw(64, 100, 100, 0)
    assert affordable(workload, Speed(1000.0, 100.0), limit_s=71.0) == workload


def test_a_slow_peer_gets_as_many_slots_full_as_time_allows() -> None:
    workload = draw(64, 100, 100, 0)
    assert affordable(workload, Speed(1000.0, 100.0), limit_s=40.0) == workload[:32]


def test_the_slowest_peer_still_gets_its_slots_filled_once() -> None:
    workload = draw(64, 100, 100, 0)
    assert affordable(workload, Speed(1.0, 1.0), limit_s=1.0) == workload[:16]


def test_a_short_workload_is_never_cut() -> None:
    workload = draw(4, 100, 100, 0)
    assert affordable(workload, Speed(1.0, 1.0), limit_s=1.0) == workload


def test_a_child_passes_progress_on_and_answers_with_its_last_line() -> None:
    script = "import sys; sys.stderr.write('progress: half\\nnoise\\n'); print('chatter'); print(sys.stdin.read())"
    said: list[str] = []
    answer = run_child([sys.executable, "-c", script], {"a": 1}, name="child", say=said.append)
    assert (answer, said) == ({"a": 1}, ["child: half"])


def test_a_child_that_fails_shows_the_end_of_its_error_output() -> None:
    with pytest.raises(BenchmarkError, match=r"child ended with 3:\nbecause"):
        run_child(
            [sys.executable, "-c", "import sys; sys.stderr.write('because'); sys.exit(3)"],
            {},
            name="child",
            say=lambda _: None,
        )


def test_a_child_that_takes_too_long_is_ended_with_all_it_has_started(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    script = (
        "import pathlib, subprocess, time; p = subprocess.Popen(['sleep', '60']); "
        f"pathlib.Path({str(told)!r}).write_text(str(p.pid)); time.sleep(60)"
    )
    with pytest.raises(BenchmarkError, match="did not end within"):
        run_child([sys.executable, "-c", script], {}, name="child", say=lambda _: None, timeout_s=3.0)
    assert _is_gone(int(told.read_text()))


def _is_gone(pid: int) -> bool:
    """Dead, or dead and not yet collected by whoever adopted it."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_a_peer_that_fails_is_named_and_the_rest_is_reported(tmp_path: Path) -> None:
    server = tmp_path / "llama-server"
    server.write_text("#!/bin/sh\nexit 1\n")
    report = run_suite(
        small_job(tmp_path), ("llama-cpp",), Peers(llama_server=server, scratch=tmp_path), repeats=1, say=lambda _: None
    )
    assert "llama-quantize" in report["failed"]["llama-cpp"]
    assert report["ratio"] == {"llama-cpp": None}
    assert report["output_tokens_per_s"] > 0


SCENARIO_SIZES = {
    "prefix_tokens": 96, "tail_tokens": 8, "prefix_rounds": 2, "streams": 3, "prompt_tokens": 8, "idle_tokens": 4,
    "prefill_tokens": 160, "prefill_rounds": 2, "running": 4, "decode_tokens": 8, "sampling_rounds": 2, "kv_blocks": 64,
}  # fmt: skip


def test_scenarios_put_their_fields_into_our_row(tmp_path: Path) -> None:
    job = small_job(tmp_path) | {"sizes": SCENARIO_SIZES}
    report = run_suite(job, (), Peers(scratch=tmp_path), repeats=1, say=lambda _: None, scenarios=True)
    row = report["rows"][0]
    assert row["ttft_warm_s"] > 0
    assert row["ttft_cold_s"] > 0
    assert row["warm_fraction"] == pytest.approx(row["ttft_warm_s"] / row["ttft_cold_s"], rel=0.05)
    assert row["itl_samples_beside_prefill"] >= 2 * SCENARIO_SIZES["streams"]
    assert row["prefill_stretch"] > 0
    assert row["sampling_overhead_fraction"] > -1
    assert 0 < row["model_bytes"] <= row["model_file_bytes"]
    assert row["kv_cache_bytes"] > 0
    assert 0 < row["kv_written_fraction"] <= 1
    over = row["scenario_peak_rss_bytes"] - row["model_bytes"] - row["kv_cache_bytes"]
    assert row["peak_rss_over_model_and_kv_bytes"] == over


@pytest.mark.parametrize(
    ("quantization", "dtype", "expected"),
    [
        (None, torch.bfloat16, 2000),
        (None, torch.float32, 4000),
        ("int8", torch.bfloat16, 1000),
        ("int4", torch.bfloat16, 500),
        ("gguf", torch.bfloat16, 640),
    ],
)
def test_a_model_is_as_large_as_its_parameters_in_the_precision_asked_for(
    quantization: str | None, dtype: torch.dtype, expected: int
) -> None:
    assert model_bytes(1000, 640, quantization, dtype) == expected


def test_parameters_are_counted_from_the_headers_of_the_files(tmp_path: Path) -> None:
    twin = write_tiny_model(tmp_path)
    assert count_parameters((tmp_path / "model.safetensors",)) == sum(p.numel() for p in twin.parameters())


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
