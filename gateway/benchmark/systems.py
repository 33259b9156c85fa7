"""The systems under test, each a process pinned to one core in front of the same upstream."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gateway.benchmark.ports import free_port, wait_for_port
from gateway.local.datastores import LocalStores
from gateway.local.issuer import DevIssuer

GATEWAY_CORE = 0
READY_TIMEOUT_S = 90.0
UPSTREAM_KEY = "sk-bench-upstream"


class SystemFailed(Exception):
    """A system did not come up; the message says which and shows the end of its log."""


@dataclass(frozen=True, slots=True)
class Target:
    """The address of a system under load and the form of its requests."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)
    model: str = "bench"


@contextmanager
def esclusa(upstream_port: int, scratch: Path, audit_mode: str) -> Iterator[Target]:
    """Ours, everything on: RS256 token, policy, limits in Valkey, audit to Postgres. The stores run on other cores."""
    with ExitStack() as stack:
        urls = stack.enter_context(LocalStores(scratch / "stores"))
        issuer = DevIssuer.open(scratch)
        config = scratch / "esclusa.yaml"
        port = free_port()
        config.write_text(yaml.safe_dump(_settings(issuer, urls.database_url, urls.redis_url, port, upstream_port,
                                                   scratch, audit_mode)))  # fmt: skip
        config.chmod(0o600)
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(config)]
        stack.enter_context(_pinned("esclusa", command, port, scratch, {}))
        token = issuer.mint("u-bench", ["analyst"], department="finance", ttl_s=7200)
        yield Target(f"http://127.0.0.1:{port}/v1/chat/completions", {"authorization": f"Bearer {token}"})


@contextmanager
def litellm(upstream_port: int, scratch: Path, python: Path) -> Iterator[Target]:
    """LiteLLM's proxy with a master key and no database: less than what ours does."""
    key, port = f"sk-{secrets.token_hex(24)}", free_port()
    config = scratch / "litellm.yaml"
    model = {
        "model": "openai/bench",
        "api_base": f"http://127.0.0.1:{upstream_port}/v1",
        "api_key": UPSTREAM_KEY,
    }
    config.write_text(yaml.safe_dump({"model_list": [{"model_name": "bench", "litellm_params": model}]}))
    command = [
        str(python.with_name("litellm")), "--config", str(config), "--host", "127.0.0.1", "--port", str(port),
        "--num_workers", "1",
    ]  # fmt: skip
    environment = {"LITELLM_MASTER_KEY": key, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with _pinned("litellm", command, port, scratch, environment):
        yield Target(f"http://127.0.0.1:{port}/v1/chat/completions", {"authorization": f"Bearer {key}"})


@contextmanager
def portkey(upstream_port: int, scratch: Path, folder: Path) -> Iterator[Target]:
    """Portkey's open gateway: no authentication, no limits, no log."""
    port = free_port()
    start = folder / "node_modules/@portkey-ai/gateway/build/start-server.js"
    with _pinned("portkey", ["node", str(start), f"--port={port}", "--headless"], port, scratch, {}):
        headers = {
            "authorization": f"Bearer {UPSTREAM_KEY}",
            "x-portkey-provider": "openai",
            "x-portkey-custom-host": f"http://127.0.0.1:{upstream_port}/v1",
        }
        yield Target(f"http://127.0.0.1:{port}/v1/chat/completions", headers)


def _settings(
    issuer: DevIssuer,
    database_url: str,
    redis_url: str,
    port: int,
    upstream_port: int,
    scratch: Path,
    audit_mode: str,
) -> dict[str, Any]:
    policy = scratch / "policy.yaml"
    policy.write_text(yaml.safe_dump(POLICY))
    return {
        "http": {"port": port, "metrics_port": None},
        "store": {"database_url": database_url, "redis_url": redis_url},
        "identity": {"providers": [json.loads(issuer.provider_settings().model_dump_json())]},
        "access": {"policy_file": str(policy), "snapshot_dir": str(scratch / "snapshots")},
        "audit": {"mode": audit_mode, "spool_dir": str(scratch / "spool")},
        "models": [{"id": "bench", "tier": "small", "upstream": "instant", "context_window": 8192}],
        "upstreams": {"instant": {"base_url": f"http://127.0.0.1:{upstream_port}/v1", "api_key": UPSTREAM_KEY}},
        "log": {"level": "warning"},
    }


POLICY: dict[str, Any] = {
    "apiVersion": "esclusa/v1",
    "kind": "PolicySet",
    "metadata": {"name": "bench", "description": "limits that a benchmark never reaches"},
    "roles": {"analyst": {"description": "may use the model"}, "policy-admin": {"description": "may change this"}},
    "rules": [
        {
            "id": "analyst-model",
            "effect": "allow",
            "subjects": {"roles": ["analyst"]},
            "actions": ["chat"],
            "models": {"ids": ["bench"]},
        },
        {
            "id": "admin-policy",
            "effect": "allow",
            "subjects": {"roles": ["policy-admin"]},
            "actions": ["policy.read", "policy.write"],
        },
    ],
    "limits": [
        {"id": "user-minute", "scope": {"each": "user"}, "window": "minute", "requests": 9_000_000, "concurrent": 1000},
        {"id": "user-day", "scope": {"each": "user"}, "window": "day", "tokens": 900_000_000_000},
        {"id": "department-day", "scope": {"each": "department"}, "window": "day", "tokens": 900_000_000_000},
    ],
}


@contextmanager
def _pinned(
    name: str, command: list[str], port: int, scratch: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    log = scratch / f"{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            preexec_fn=lambda: os.sched_setaffinity(0, {GATEWAY_CORE}),
        )
        try:
            if not wait_for_port(port, READY_TIMEOUT_S, process):
                raise SystemFailed(f"{name} did not come up:\n{log.read_text(errors='replace')[-1500:]}")
            time.sleep(1.0)
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
