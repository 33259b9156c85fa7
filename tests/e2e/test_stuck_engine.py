"""A process whose engine is stuck in a step ends after SIGTERM all the same, and says why."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx2
import yaml

from gateway.local.issuer import DevIssuer
from tests.fakes.hang_guard import HANG_S
from tests.fakes.stage import POLICY
from tests.fakes.tiny_model import write_tiny_model

ROOT = Path(__file__).parents[2]
STUCK = """
import threading, engine.execution.runner
engine.execution.runner.ModelRunner.execute = lambda *_: threading.Event().wait()
from gateway.cli.main import main
main()
"""


def test_sigterm_ends_a_process_whose_engine_never_returns_from_a_step(
    tmp_path: Path, stage_database_url: str, valkey_url: str, issuer: DevIssuer
) -> None:
    write_tiny_model(tmp_path / "tiny")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    provider = json.loads(issuer.provider_settings().model_dump_json(exclude_none=True))
    provider.pop("shared_secret", None)
    tree = {
        "http": {"port": port, "metrics_port": None, "shutdown_grace_s": 1, "drain_delay_s": 0},
        "store": {"database_url": stage_database_url, "redis_url": valkey_url, "redis_timeout_ms": 2000},
        "identity": {"providers": [provider]},
        "access": {"policy_file": str(POLICY)},
        "audit": {"spool_dir": str(tmp_path / "spool")},
        "local": {"data_dir": str(tmp_path)},
        "models": [{"id": "tiny", "tier": "small", "path": str(tmp_path / "tiny"), "context_window": 256}],
        "engine": {"device": "cpu", "kv_cache_bytes": 4 << 20, "threads": 1},
        "log": {"format": "json"},
    }
    config, url = tmp_path / "esclusa.yaml", f"http://127.0.0.1:{port}"
    config.write_text(yaml.safe_dump(tree), encoding="utf-8")
    program = [sys.executable, "-c", STUCK, "serve", "--config", str(config)]
    child = subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        until = time.monotonic() + 2 * HANG_S
        while time.monotonic() < until:
            with contextlib.suppress(httpx2.TransportError):
                if httpx2.get(f"{url}/readyz").status_code == 200:
                    break
            time.sleep(0.05)

        def ask() -> None:
            headers = {"authorization": f"Bearer {issuer.mint('u-1', ('analyst',), department='finance')}"}
            body = {"model": "tiny", "messages": [{"role": "user", "content": "Hola"}]}
            with contextlib.suppress(httpx2.TransportError):
                httpx2.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=2 * HANG_S)

        caller = threading.Thread(target=ask)
        caller.start()
        time.sleep(1.0)
        child.send_signal(signal.SIGTERM)
        output, _ = child.communicate(timeout=2 * HANG_S)
        caller.join()
    finally:
        if child.poll() is None:
            child.kill()
            child.communicate()
    assert child.returncode == 0, output
    assert "left behind" in output
    assert "stuck in a step" in output
