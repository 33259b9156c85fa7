"""A gateway with private stores whose Postgres and Valkey are killed: requests go on, and everything comes back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from gateway.local.issuer import DevIssuer
from gateway.local.postgres import running_url
from tests.e2e.test_life import Process, free_port
from tests.fakes.stage import POLICY, UpstreamThread, _records, apart

pytestmark = pytest.mark.timeout(180)
ASK = {"model": "mini", "messages": [{"role": "user", "content": "Hola"}]}


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="esclusa-private-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def gateway(folder: Path, issuer: DevIssuer, upstream_thread: UpstreamThread) -> Iterator[tuple[Process, str]]:
    provider = json.loads(issuer.provider_settings().model_dump_json(exclude_none=True))
    port, metrics = free_port(), free_port()
    tree: dict[str, Any] = {
        "http": {"port": port, "metrics_port": metrics},
        "identity": {"providers": [provider]},
        "access": {"policy_file": str(POLICY)},
        "local": {"data_dir": str(folder / "data")},
        "upstreams": {"up": {"base_url": upstream_thread.script.url}},
        "models": [{"id": "mini", "tier": "small", "upstream": "up"}],
    }
    (folder / "data").mkdir(mode=0o711)
    file = folder / "esclusa.yaml"
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    process = Process(file, port)
    try:
        process.wait_ready(90)
        yield process, f"http://127.0.0.1:{metrics}/metrics"
    finally:
        process.signal(signal.SIGINT)
        process.finish()


def pid_in(path: Path) -> int:
    return int(path.read_text().split("\n", 1)[0])


def wait_for_metric(url: str, line: str) -> None:
    deadline = time.monotonic() + 40
    while line not in httpx2.get(url).text:
        assert time.monotonic() < deadline, f"never {line}"
        time.sleep(0.1)


def ask(process: Process, issuer: DevIssuer) -> httpx2.Response:
    token = issuer.mint("u-1", ["analyst"], department="finance", tenant="acme")
    headers = {"authorization": f"Bearer {token}"}
    return httpx2.post(f"{process.url}/v1/chat/completions", json=ASK, headers=headers, timeout=30)


def eventually_answers(process: Process, issuer: DevIssuer, within_s: float = 20) -> httpx2.Response:
    deadline = time.monotonic() + within_s
    while (answer := ask(process, issuer)).status_code != 200 or "x-esclusa-limits" in answer.headers:
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.1)
    return answer


def test_killed_stores_come_back_under_a_running_gateway(
    gateway: tuple[Process, str], folder: Path, issuer: DevIssuer
) -> None:
    process, metrics = gateway
    data = folder / "data"
    assert ask(process, issuer).status_code == 200
    os.kill(pid_in(data / "postgres/data/postmaster.pid"), signal.SIGKILL)
    os.kill(pid_in(data / "valkey/valkey.pid"), signal.SIGKILL)
    during = ask(process, issuer)
    for store in ("Postgres", "Valkey"):
        wait_for_metric(metrics, f'esclusa_local_store_restarts_total{{store="{store}"}} 1.0')
    after = eventually_answers(process, issuer)
    url = running_url(data / "postgres")
    assert url is not None
    for answer in (during, after):
        rows = apart(_records(url, "request_id = $1", answer.headers["x-request-id"], 2, 20.0))
        assert [row["phase"] for row in rows] == ["intent", "completion"]
    assert httpx2.get(f"{process.url}/readyz").status_code == 200
