"""Operating the engines over HTTP: a real one is paused, drained, put to sleep, woken, and all of it is on record."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.fakes.stage import Stage
from tests.fakes.tiny_model import write_tiny_model

ENGINES = "/admin/v1/engines"
SNAPSHOT_S = 1.2
"""A paused engine renews its figures once a second."""
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hola"}], "max_tokens": 4, "ignore_eos": True}


@pytest.fixture(scope="module")
def stage_overrides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("operated")
    write_tiny_model(folder, max_position_embeddings=16384)
    return {
        "models": (
            {"id": "tiny", "tier": "large", "path": str(folder), "context_window": 16384},
            {"id": "mini", "tier": "small", "upstream": "up", "context_window": 512},
        ),
        "engine": {"device": "cpu", "kv_cache_bytes": 16 << 20, "threads": 1, "max_num_seqs": 4},
    }


class Console:
    """An operator at work."""

    def __init__(self, stage: Stage, role: str = "operator") -> None:
        self.stage, self._headers = stage, stage.headers(role, sub=f"u-{role}")

    def get(self, path: str = "") -> httpx2.Response:
        return httpx2.get(self.stage.url + ENGINES + path, headers=self._headers, timeout=30)

    def post(self, verb: str, model: str = "tiny", **headers: str) -> httpx2.Response:
        sent = {**self._headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return httpx2.post(f"{self.stage.url}{ENGINES}/{model}:{verb}", headers=sent, timeout=30)

    def state(self) -> str:
        return str(self.get("/tiny").json()["state"])

    def wait_for(self, state: str) -> dict[str, Any]:
        deadline = time.monotonic() + 20
        while (found := self.get("/tiny").json())["state"] != state:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        return dict(found)


@pytest.fixture
def console(stage: Stage) -> Iterator[Console]:
    console = Console(stage)
    yield console
    if console.state() in ("asleep", "waking"):
        console.post("wake")
    else:
        console.post("resume")
    console.wait_for("ready")


def ask(stage: Stage, **changes: Any) -> httpx2.Response:
    return httpx2.post(
        f"{stage.url}/v1/chat/completions", json={**CHAT, **changes}, headers=stage.headers(), timeout=60
    )


@contextmanager
def running(stage: Stage, tokens: int = 15000) -> Iterator[Iterator[str]]:
    """A streamed answer that has begun; leaving hangs up."""
    asked = {**CHAT, "max_tokens": tokens, "stream": True}
    with httpx2.stream(
        "POST", f"{stage.url}/v1/chat/completions", json=asked, headers=stage.headers(), timeout=60
    ) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        next(lines)
        yield lines


def test_an_operator_sees_state_load_and_cache_of_each_engine(console: Console) -> None:
    assert ask(console.stage).status_code == 200
    page = console.get().json()
    assert (page["total"], [engine["model"] for engine in page["data"]]) == (1, ["tiny"])
    (engine,) = page["data"]
    assert (engine["state"], engine["running"], engine["restarts"]) == ("ready", 0, 0)
    assert engine["generated_tokens"] >= 4
    assert engine["kv_blocks"] > 0


@pytest.mark.parametrize("model", ["mini", "ghost", "auto"])
def test_only_models_of_an_engine_here_can_be_operated(console: Console, model: str) -> None:
    for answer in (console.get(f"/{model}"), console.post("pause", model)):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def test_a_paused_engine_refuses_with_a_hint_and_resumes(console: Console) -> None:
    assert console.post("pause").json()["state"] == "paused"
    refused = ask(console.stage)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (503, "engine_unavailable")
    assert "paused" in error["message"]
    assert "operator" in error["hint"]
    assert int(refused.headers["retry-after"]) > 0
    assert console.post("resume").json()["state"] == "ready"
    assert ask(console.stage).status_code == 200


def test_a_pause_holds_a_running_answer_and_loses_nothing_of_it(console: Console) -> None:
    with running(console.stage, tokens=1500) as lines:
        assert console.post("pause").status_code == 200
        time.sleep(SNAPSHOT_S)
        held = console.get("/tiny").json()["generated_tokens"]
        time.sleep(SNAPSHOT_S)
        found = console.get("/tiny").json()
        assert (found["running"], found["generated_tokens"]) == (1, held)
        assert console.post("resume").status_code == 200
        events = [line.removeprefix("data: ") for line in lines if line]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["choices"][0]["finish_reason"] == "length"


def test_a_drain_lets_running_answers_end_and_takes_no_new_ones(console: Console) -> None:
    with running(console.stage):
        begun = console.post("drain")
        assert (begun.status_code, begun.json()["state"]) == (202, "draining")
        assert ask(console.stage).status_code == 503
    assert console.wait_for("drained")["running"] == 0
    assert console.post("drain").status_code == 200


def test_a_sleeping_engine_wakes_with_its_weights(console: Console) -> None:
    before = ask(console.stage, temperature=0).json()["choices"][0]["message"]["content"]
    assert console.post("sleep").status_code in (200, 202)
    console.wait_for("asleep")
    assert "asleep" in ask(console.stage).json()["error"]["message"]
    assert console.post("wake").status_code in (200, 202)
    console.wait_for("ready")
    after = ask(console.stage, temperature=0)
    assert after.status_code == 200, after.text
    assert after.json()["choices"][0]["message"]["content"] == before


@pytest.mark.parametrize(("first", "then"), [("sleep", "pause"), ("sleep", "resume"), ("pause", "wake")])
def test_an_action_that_does_not_fit_is_a_conflict(console: Console, first: str, then: str) -> None:
    console.post(first)
    console.wait_for({"sleep": "asleep", "pause": "paused"}[first])
    answer = console.post(then)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "engine_state")
    assert "first" in answer.json()["error"]["message"]


def test_a_resume_calls_a_sleep_off(console: Console) -> None:
    with running(console.stage):
        assert console.post("sleep").status_code == 202
        assert console.post("resume").json()["state"] == "ready"
    assert ask(console.stage).status_code == 200
    assert console.state() == "ready"


def test_a_replica_whose_only_engine_is_stopped_is_not_ready(console: Console) -> None:
    console.post("pause")
    probe = httpx2.get(f"{console.stage.url}/readyz")
    assert (probe.status_code, probe.json()["status"], probe.json()["parts"]["engine"]) == (
        503,
        "unavailable",
        "stopped",
    )
    console.post("resume")
    assert httpx2.get(f"{console.stage.url}/readyz").status_code == 200


def test_a_repeated_request_does_not_act_twice(console: Console) -> None:
    assert console.post("pause", idempotency_key="night-1").json()["state"] == "paused"
    console.post("resume")
    assert console.post("pause", idempotency_key="night-1").json()["state"] == "ready"
    reused = console.post("drain", idempotency_key="night-1")
    assert (reused.status_code, reused.json()["error"]["code"]) == (409, "idempotency_key_reused")


def recorded(stage: Stage, answer: httpx2.Response) -> dict[str, Any]:
    (row,) = stage.records(answer.headers["x-request-id"], expect=1)
    return {**row, "record": json.loads(row["rec"])}


def test_every_action_is_on_record_with_the_state_before_and_after(console: Console) -> None:
    row = recorded(console.stage, console.post("pause", x_change_reason="weights are being changed"))
    change = json.loads(row["personal"])
    assert (row["phase"], row["subject"], row["target"]) == ("admin", "u-operator", "engines/*:pause")
    assert change["target"] == "engines/tiny:pause"
    assert (change["diff"]["before"]["state"], change["diff"]["after"]["state"]) == ("ready", "paused")
    assert change["reason"] == "weights are being changed"


def test_a_refused_action_is_on_record_as_well(console: Console) -> None:
    row = recorded(console.stage, console.post("pause", "mini"))
    assert (row["phase"], row["decision"], row["http_status"]) == ("admin", "deny", 404)


def test_nobody_else_operates(console: Console) -> None:
    answer = Console(console.stage, "analyst").post("pause")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_permitted")
    assert console.state() == "ready"


def test_forgetting_who_stopped_the_engine_leaves_its_state_and_is_on_record(console: Console) -> None:
    answer = console.post("clear-poison")
    assert (answer.status_code, answer.json()["state"], answer.json()["poisoned"]) == (200, "ready", 0)
    assert recorded(console.stage, answer)["target"] == "engines/*:clear-poison"


def test_an_engine_that_is_stuck_in_a_step_is_not_ready_and_refuses_at_once(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend: Any = console.stage.gateway.services.backends["local"]
    with monkeypatch.context() as patch:
        patch.setattr(type(backend._engines["tiny"]), "stalled_s", property(lambda _: 7.0))
        assert console.state() == "stalled"
        probe = httpx2.get(f"{console.stage.url}/readyz")
        assert (probe.status_code, probe.json()["status"], probe.json()["parts"]["engine"]) == (
            503,
            "unavailable",
            "stalled",
        )
        refused = ask(console.stage)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_unavailable")
        assert int(refused.headers["retry-after"]) > 0
        elsewhere = ask(console.stage, model="auto", ignore_eos=None)
        assert (elsewhere.status_code, elsewhere.headers["x-esclusa-model"]) == (200, "mini")
        assert console.post("pause").json()["error"]["code"] == "engine_state"
    assert ask(console.stage).status_code == 200
