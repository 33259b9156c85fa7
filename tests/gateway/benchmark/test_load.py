"""The load of the gateway benchmark: bounded, honest about errors, loopback only."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gateway.benchmark.load import Load
from gateway.benchmark.ports import free_port, wait_for_port
from gateway.benchmark.suite import BenchmarkError, Plan, run_suite
from gateway.benchmark.upstream import FRAME, body_length


@pytest.fixture(scope="module")
def upstream() -> Iterator[int]:
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "gateway.benchmark.upstream", str(port)])
    try:
        assert wait_for_port(port, 30, process)
        yield port
    finally:
        process.kill()
        process.wait()


def job(port: int, path: str = "/v1/chat/completions", host: str = "127.0.0.1") -> dict[str, object]:
    return {
        "url": f"http://{host}:{port}{path}",
        "headers": {},
        "body": {"model": "bench"},
        "concurrency": 4,
        "duration_s": 1.0,
    }


def test_the_fixed_answer_states_its_own_length() -> None:
    head, _, body = FRAME.partition(b"\r\n\r\n")
    assert body_length(head) == len(body)
    assert json.loads(body)["choices"][0]["finish_reason"] == "stop"


def test_a_head_without_a_length_has_none() -> None:
    assert body_length(b"GET / HTTP/1.1\r\nhost: x") == 0


def test_the_load_counts_answers_and_their_times(upstream: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "gateway.benchmark.load"],
        input=json.dumps(job(upstream)),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    figures = json.loads(ended.stdout)
    assert figures["errors"] == 0
    assert figures["requests_per_s"] > 10
    assert 0 < figures["p50_ms"] <= figures["p99_ms"]


@pytest.mark.parametrize("host", ["example.com", "10.0.0.1", "localhost"])
def test_the_load_refuses_to_leave_loopback(host: str) -> None:
    with pytest.raises(ValueError, match=r"127\.0\.0\.1"):
        Load(job(80, host=host))


def test_an_unknown_peer_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BenchmarkError, match="litellm, portkey"):
        run_suite(Plan((1,), 1.0, 1, "fast", ("kong",)), lambda _: None)
