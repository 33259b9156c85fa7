"""An engine with one place, over HTTP: what waits too long is an error, and who leaves the queue pays nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.fakes.hang_guard import HANG_S
from tests.fakes.stage import Stage
from tests.fakes.tiny_model import write_tiny_model

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hola"}], "max_tokens": 4, "ignore_eos": True}
DEADLINE_S = 3.0


@pytest.fixture(scope="module")
def stage_overrides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("full")
    write_tiny_model(folder, max_position_embeddings=1 << 17)
    return {
        "http": {"port": 0, "metrics_port": None, "shutdown_grace_s": 5.0, "request_timeout_s": DEADLINE_S},
        "models": ({"id": "tiny", "tier": "large", "path": str(folder), "context_window": 1 << 17},),
        "engine": {
            "device": "cpu",
            "kv_cache_bytes": 64 << 20,
            "threads": 1,
            "max_num_seqs": 1,
            "scheduling_policy": "fcfs",
        },
    }


def post(stage: Stage, subject: str, **changes: Any) -> httpx2.Response:
    return httpx2.post(
        f"{stage.url}/v1/chat/completions", json={**CHAT, **changes}, headers=stage.headers(sub=subject), timeout=60
    )


@contextmanager
def the_only_place(stage: Stage) -> Iterator[Iterator[str]]:
    """A streamed answer that runs until its deadline."""
    asked = {**CHAT, "max_tokens": 120_000, "stream": True}
    with httpx2.stream(
        "POST", f"{stage.url}/v1/chat/completions", json=asked, headers=stage.headers(sub="u-long"), timeout=60
    ) as answer:
        lines = answer.iter_lines()
        next(lines)
        yield lines


@contextmanager
def held_once_it_waits(stage: Stage) -> Iterator[None]:
    """The engine stands still as soon as a request waits, so that its deadline passes in the queue."""
    backend: Any = stage.gateway.services.backends["local"]
    engine = backend._engines["tiny"]

    def hold() -> None:
        until = time.monotonic() + HANG_S
        while not engine.stats().waiting and time.monotonic() < until:
            time.sleep(0.01)
        engine._thread.pause().result(HANG_S)

    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(hold)
        yield
        held.result(HANG_S)
    engine._thread.resume().result(HANG_S)


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_that_passes_in_the_queue_is_503_with_a_retry_after_and_costs_no_tokens(
    stage: Stage, stream: bool
) -> None:
    with the_only_place(stage), held_once_it_waits(stage):
        answer = post(stage, "u-late", stream=stream)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "deadline_exceeded")
    assert int(answer.headers["retry-after"]) > 0
    record = stage.records(answer.headers["x-request-id"])[-1]
    assert (record["outcome"], record["http_status"], record["tokens_in"], record["tokens_out"]) == ("error", 503, 0, 0)


def test_a_deadline_amid_an_answer_ends_it_there_with_length_and_its_cause(stage: Stage) -> None:
    answer = post(stage, "u-mid", max_tokens=120_000)
    assert answer.status_code == 200
    body = answer.json()
    assert (body["choices"][0]["finish_reason"], body["x_esclusa"]["stop"]) == ("length", "deadline")
    assert 0 < body["usage"]["completion_tokens"] < 120_000


def test_who_hangs_up_while_waiting_pays_nothing(stage: Stage) -> None:
    url, headers = f"{stage.url}/v1/chat/completions", stage.headers(sub="u-impatient")
    with the_only_place(stage), held_once_it_waits(stage):
        with pytest.raises(httpx2.ReadTimeout):
            httpx2.post(url, json=CHAT, headers=headers, timeout=0.5)
        rows = stage.records_of("u-impatient", timeout_s=30.0)
    last = next(row for row in rows if row["phase"] == "completion")
    assert (last["outcome"], last["tokens_in"], last["tokens_out"]) == ("client_disconnect", 0, 0)
