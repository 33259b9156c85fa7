"""The life of `esclusa serve` as a process: a port that answers at once, one drain, one hard stop, a clean refusal."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
import yaml

from gateway.local.issuer import DevIssuer
from tests.fakes.stage import POLICY, UpstreamThread, _records, apart

ROOT = Path(__file__).parents[2]
ASK = {"model": "mini", "messages": [{"role": "user", "content": "Hola"}], "stream": True}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Process:
    def __init__(
        self, config: Path, port: int, *, without_engine: bool = False, descriptors: int | None = None
    ) -> None:
        """`descriptors`: the hard limit of open files."""
        confined = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({descriptors}, {descriptors}));"
        blocked = "import sys; sys.modules.update(dict.fromkeys(('torch', 'transformers', 'engine')));"
        before = (confined if descriptors else "") + (blocked if without_engine else "")
        program = f"{before}from gateway.cli.main import main; main()"
        self.url = f"http://127.0.0.1:{port}"
        self._child = subprocess.Popen(
            [sys.executable, "-c", program, "serve", "--config", str(config)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            # Under `nohup` the tests inherit that SIGHUP is ignored, and so would this process.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )

    def wait_ready(self, timeout_s: float = 60.0) -> list[int]:
        """The statuses that `/readyz` gave on the way."""
        seen: list[int] = []
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                seen.append(httpx2.get(f"{self.url}/readyz").status_code)
            except httpx2.TransportError:
                seen.append(0)
            if seen[-1] == 200:
                return seen
            if self._child.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"not ready: {self.finish(1)}")

    def signal(self, number: signal.Signals) -> None:
        self._child.send_signal(number)

    def finish(self, timeout_s: float = 30.0) -> tuple[int, str, str]:
        out, err = self._child.communicate(timeout=timeout_s)
        return self._child.returncode, out, err

    def kill(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
            self._child.communicate(timeout=10)


@pytest.fixture
def config(
    tmp_path: Path, stage_database_url: str, valkey_url: str, issuer: DevIssuer, upstream_thread: UpstreamThread
) -> tuple[Path, int]:
    port = free_port()
    provider = json.loads(issuer.provider_settings().model_dump_json(exclude_none=True))
    provider.pop("shared_secret", None)
    tree = {
        "http": {"port": port, "metrics_port": None, "shutdown_grace_s": 10, "drain_delay_s": 3},
        "store": {"database_url": stage_database_url, "redis_url": valkey_url, "redis_timeout_ms": 2000},
        "identity": {"providers": [provider]},
        "access": {"policy_file": str(POLICY)},
        "audit": {"spool_dir": str(tmp_path / "spool")},
        "local": {"data_dir": str(tmp_path)},
        "upstreams": {"up": {"base_url": upstream_thread.script.url}},
        "models": [{"id": "mini", "tier": "small", "upstream": "up"}],
        "log": {"format": "json"},
    }
    file = tmp_path / "esclusa.yaml"
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return file, port


@contextmanager
def running(config: tuple[Path, int], *, without_engine: bool = False) -> Iterator[Process]:
    process = Process(*config, without_engine=without_engine)
    try:
        process.wait_ready()
        yield process
    finally:
        process.kill()


class Reading(threading.Thread):
    """A client that reads a whole stream."""

    def __init__(self, url: str, token: str, *, stream: bool = True) -> None:
        super().__init__(daemon=True)
        self._url, self._token, self._body = url, token, {**ASK, "stream": stream}
        self.status = 0
        self.started_reading = threading.Event()
        self.text = ""
        self.request_id = ""
        self.broken = False

    def run(self) -> None:
        headers = {"authorization": f"Bearer {self._token}"}
        try:
            with httpx2.stream(
                "POST", f"{self._url}/v1/chat/completions", json=self._body, headers=headers, timeout=30
            ) as answer:
                self.status = answer.status_code
                self.request_id = answer.headers["x-request-id"]
                for piece in answer.iter_text():
                    self.text += piece
                    self.started_reading.set()
        except httpx2.TransportError:
            self.broken = True
        self.started_reading.set()


def slow(upstream_thread: UpstreamThread, words: int) -> None:
    upstream_thread.script.mode, upstream_thread.script.delay_s = "slow", 0.05
    upstream_thread.script.words = tuple(f"w{number} " for number in range(words))


def test_the_port_answers_before_anything_is_ready(config: tuple[Path, int]) -> None:
    process = Process(*config)
    try:
        seen: set[tuple[int, int]] = set()
        deadline = time.monotonic() + 60
        while (200, 200) not in seen and time.monotonic() < deadline:
            with contextlib.suppress(httpx2.TransportError):
                ready, alive = httpx2.get(f"{process.url}/readyz"), httpx2.get(f"{process.url}/livez")
                seen.add((ready.status_code, alive.status_code))
                if ready.status_code == 503:
                    assert ready.json()["stage"]
                    assert "percent" in ready.json()
                    assert ready.headers["retry-after"]
            time.sleep(0.01)
    finally:
        process.kill()
    assert seen == {(503, 200), (200, 200)}


@pytest.mark.parametrize(
    "numbers",
    [
        [signal.SIGTERM],
        [signal.SIGHUP],
        [signal.SIGQUIT],
        [signal.SIGTERM, signal.SIGHUP],
        [signal.SIGHUP, signal.SIGTERM],
    ],
)
def test_the_first_signal_lets_running_answers_end(
    config: tuple[Path, int],
    issuer: DevIssuer,
    upstream_thread: UpstreamThread,
    stage_database_url: str,
    numbers: list[signal.Signals],
) -> None:
    slow(upstream_thread, 30)
    with running(config) as process:
        reader = Reading(process.url, issuer.mint("u-1", ["analyst"]))
        reader.start()
        reader.started_reading.wait(10)
        for number in numbers:
            process.signal(number)
        reader.join(20)
        code, _, err = process.finish()
    assert code == 0, err
    assert reader.text.endswith("data: [DONE]\n\n")
    rows = apart(_records(stage_database_url, "request_id = $1", reader.request_id, 2, 5.0))
    assert [row["outcome"] for row in rows][-1] == "ok"


def test_after_sigterm_the_port_says_draining_before_it_closes(
    config: tuple[Path, int], issuer: DevIssuer, upstream_thread: UpstreamThread
) -> None:
    slow(upstream_thread, 3)
    with running(config) as process:
        process.signal(signal.SIGTERM)
        seen: set[tuple[int, str]] = set()
        while (503, "draining") not in seen:  # ends with a refused connection where the port closes unannounced
            probe = httpx2.get(f"{process.url}/readyz")
            seen.add((probe.status_code, probe.json()["status"]))
        served = Reading(process.url, issuer.mint("u-1", ["analyst"]))
        served.start()
        code, _, err = process.finish()
        served.join(5)
    assert (503, "draining") in seen
    assert served.text.endswith("data: [DONE]\n\n")
    assert code == 0, err


def test_ctrl_c_waits_for_nobody_who_is_not_being_served(config: tuple[Path, int]) -> None:
    file, port = config
    tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    tree["http"]["drain_delay_s"] = 300  # only SIGTERM announces the end; waiting for it here would never end
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    with running((file, port)) as process:
        process.signal(signal.SIGINT)
        code, _, err = process.finish()
    assert code == 0, err


def test_the_second_signal_stops_at_once_and_still_records(
    config: tuple[Path, int], issuer: DevIssuer, upstream_thread: UpstreamThread, stage_database_url: str
) -> None:
    slow(upstream_thread, 2000)
    with running(config) as process:
        reader = Reading(process.url, issuer.mint("u-2", ["analyst"]))
        reader.start()
        reader.started_reading.wait(10)
        process.signal(signal.SIGINT)
        time.sleep(0.5)
        process.signal(signal.SIGINT)
        code, _, err = process.finish()  # the answer itself would take another 1,000 s
    assert code == 0, err
    assert "[DONE]" not in reader.text
    assert '"code":"gateway_stopping"' in reader.text.strip().splitlines()[-1]
    assert not reader.broken
    assert "Traceback" not in err
    assert "CancelledError" not in err
    rows = apart(_records(stage_database_url, "request_id = $1", reader.request_id, 2, 5.0))
    assert [row["outcome"] for row in rows][-1] == "cancelled"


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_an_answer_that_outlasts_the_grace_is_told_so(
    config: tuple[Path, int],
    issuer: DevIssuer,
    upstream_thread: UpstreamThread,
    stage_database_url: str,
    stream: bool,
) -> None:
    slow(upstream_thread, 2000)
    if not stream:
        upstream_thread.script.mode = "hang"
    tree = yaml.safe_load(config[0].read_text())
    tree["http"] |= {"shutdown_grace_s": 1, "drain_delay_s": 0}
    config[0].write_text(yaml.safe_dump(tree), encoding="utf-8")
    with running(config) as process:
        reader = Reading(process.url, issuer.mint(f"u-5-{stream}", ["analyst"]), stream=stream)
        reader.start()
        reader.started_reading.wait(2)
        process.signal(signal.SIGTERM)
        code, _, err = process.finish()
        reader.join(5)
    assert code == 0, err
    assert '"code":"gateway_stopping"' in reader.text.strip().splitlines()[-1]
    assert (reader.broken, reader.status) == (False, 200 if stream else 503)
    assert "Traceback" not in err
    rows = apart(_records(stage_database_url, "subject = $1", f"u-5-{stream}", 2, 5.0))
    assert [row["outcome"] for row in rows] == [None, "cancelled"]


def test_a_gateway_without_the_engine_installed_is_a_proxy(config: tuple[Path, int], issuer: DevIssuer) -> None:
    with running(config, without_engine=True) as process:
        headers = {"authorization": f"Bearer {issuer.mint('u-3', ['analyst'])}"}
        answer = httpx2.post(f"{process.url}/v1/chat/completions", json={**ASK, "stream": False}, headers=headers)
        assert answer.json()["choices"][0]["message"]["content"] == "Hola, mundo!"


def test_logs_are_json_and_hold_neither_token_nor_prompt(config: tuple[Path, int], issuer: DevIssuer) -> None:
    token = issuer.mint("u-4", ["analyst"])
    secret = "palabra-muy-secreta"
    with running(config) as process:
        headers = {"authorization": f"Bearer {token}"}
        body = {**ASK, "messages": [{"role": "user", "content": secret}]}
        httpx2.post(f"{process.url}/v1/chat/completions?token={token}", json=body, headers=headers)
        httpx2.post(f"{process.url}/v1/chat/completions", content=secret, headers=headers)
        process.signal(signal.SIGTERM)
        _, out, err = process.finish()
    entries = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert any(entry.get("event") == "request" and entry["status"] == 200 for entry in entries)
    for text in (out, err):
        assert token not in text
        assert token.split(".")[2] not in text
        assert secret not in text


def test_a_port_that_is_taken_ends_the_start_with_a_reason(config: tuple[Path, int]) -> None:
    file, port = config
    with socket.create_server(("127.0.0.1", port)):
        process = Process(file, port)
        code, _, err = process.finish()
    assert code == 2
    assert str(port) in err
    assert "Traceback" not in err


def test_a_metrics_port_that_is_taken_is_told_before_anything_starts(config: tuple[Path, int]) -> None:
    file, port = config
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        file.write_text(file.read_text().replace("metrics_port: null", f"metrics_port: {taken}"), encoding="utf-8")
        code, _, err = Process(file, port).finish()
    assert code == 2
    assert f"cannot listen on 127.0.0.1:{taken}: Address already in use" in err


def test_a_spool_that_cannot_be_made_is_told_as_that(config: tuple[Path, int], tmp_path: Path) -> None:
    file, port = config
    (tmp_path / "file").write_text("no folder")
    tree = yaml.safe_load(file.read_text())
    tree["audit"]["spool_dir"] = str(tmp_path / "file" / "spool")
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    code, _, err = Process(file, port).finish()
    assert code == 2
    assert "audit spool cannot be used" in err
    assert "cannot listen" not in err
    assert "Traceback" not in err


def test_a_wrong_settings_file_ends_the_start_with_its_line(config: tuple[Path, int]) -> None:
    file, port = config
    file.write_text(file.read_text().replace("metrics_port", "metrics_prot"), encoding="utf-8")
    code, _, err = Process(file, port).finish()
    assert code == 2
    assert f"{file}:" in err
    assert "did you mean `metrics_port`?" in err
    assert "Traceback" not in err


def test_a_wrong_policy_file_ends_the_start(config: tuple[Path, int], tmp_path: Path, empty_database_url: str) -> None:
    file, port = config
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.read_text().replace("effect: allow", "efect: allow", 1), encoding="utf-8")
    tree = yaml.safe_load(file.read_text())
    tree["access"]["policy_file"] = str(policy)
    tree["store"]["database_url"] = empty_database_url
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    code, _, err = Process(file, port).finish()
    assert code == 2
    assert "policy.yaml" in err
    assert "efect" in err
    assert "Traceback" not in err
