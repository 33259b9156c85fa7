"""Run ours and the named peers in turn under the same load and compare."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.access.decision.bench import bench_policy
from gateway.benchmark.ports import free_port
from gateway.benchmark.systems import GATEWAY_CORE, Target, esclusa, litellm, portkey

PEERS = ("litellm", "portkey")
Say = Callable[[str], None]
MESSAGES = [
    {"role": "system", "content": "Eres un asistente conciso."},
    {"role": "user", "content": "¿Qué es una esclusa? Responde en una frase."},
]


class BenchmarkError(Exception):
    """A system could not be measured; the message says why and what to pass."""


@dataclass(frozen=True, slots=True)
class Plan:
    concurrency: tuple[int, ...]
    duration_s: float
    repeats: int
    audit_mode: str
    vs: tuple[str, ...]
    litellm_python: Path | None = None
    portkey_dir: Path | None = None


def run_suite(plan: Plan, say: Say) -> dict[str, Any]:
    """Rows per system and concurrency, medians over the repeats; our ratio to each peer. Raises `BenchmarkError`."""
    unknown = [name for name in plan.vs if name not in PEERS]
    if unknown:
        raise BenchmarkError(f"unknown peer {', '.join(unknown)}; there are {', '.join(PEERS)}")
    runs: dict[tuple[str, int], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="esclusa-bench-") as name:
        scratch = Path(name)
        scratch.chmod(0o711)  # a private Postgres may run as another user
        port = free_port()
        upstream = subprocess.Popen([sys.executable, "-m", "gateway.benchmark.upstream", str(port)])
        os.sched_setaffinity(upstream.pid, _other_cores())
        try:
            for repeat in range(plan.repeats):
                for system in ("esclusa", *plan.vs):
                    folder = scratch / f"{system}-{repeat}"
                    folder.mkdir()
                    folder.chmod(0o711)
                    with _open(system, plan, port, folder) as target:
                        for concurrency in plan.concurrency:
                            row = _measure(target, concurrency, plan.duration_s)
                            say(f"{system} at {concurrency}: {row['requests_per_s']} req/s, p50 {row['p50_ms']} ms")
                            runs.setdefault((system, concurrency), []).append(row)
        finally:
            upstream.kill()
            upstream.wait()
    rows = [{"system": system, "concurrency": at, **_median(found)} for (system, at), found in runs.items()]
    return {
        "rows": rows,
        "ratio": {peer: _ratios(rows, peer) for peer in plan.vs},
        "policy_p99_us": round(bench_policy(1000), 1),
        "audit_mode": plan.audit_mode,
        "pinned_to_core": GATEWAY_CORE,
        "machine": _machine(),
    }


def _open(system: str, plan: Plan, port: int, folder: Path) -> AbstractContextManager[Target]:
    if system == "litellm":
        if plan.litellm_python is None:
            raise BenchmarkError("litellm needs `--litellm-python PATH` (the Python of its own environment)")
        return litellm(port, folder, plan.litellm_python)
    if system == "portkey":
        if plan.portkey_dir is None:
            raise BenchmarkError("portkey needs `--portkey-dir PATH` (where npm installed @portkey-ai/gateway)")
        return portkey(port, folder, plan.portkey_dir)
    return esclusa(port, folder, plan.audit_mode)


def _measure(target: Target, concurrency: int, duration_s: float) -> dict[str, Any]:
    job = {
        "url": target.url,
        "headers": target.headers,
        "body": {"model": target.model, "messages": MESSAGES, "max_tokens": 64},
        "concurrency": concurrency,
        "duration_s": duration_s,
    }
    ended = subprocess.run(
        [sys.executable, "-m", "gateway.benchmark.load"],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=duration_s + 60,
        preexec_fn=lambda: os.sched_setaffinity(0, _other_cores()),
        check=False,
    )
    if ended.returncode != 0:
        raise BenchmarkError(f"the load generator failed:\n{ended.stderr[-1500:]}")
    figures: dict[str, Any] = json.loads(ended.stdout)
    if figures["p50_ms"] is None:
        raise BenchmarkError(f"no request succeeded: {figures['first_error']}")
    return figures


def _median(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rates = [row["requests_per_s"] for row in rows]
    return {
        "requests_per_s": statistics.median(rates),
        "p50_ms": statistics.median(row["p50_ms"] for row in rows),
        "p99_ms": statistics.median(row["p99_ms"] for row in rows),
        "errors": sum(row["errors"] for row in rows),
        "requests_per_s_range": [min(rates), max(rates)],
    }


def _ratios(rows: Sequence[dict[str, Any]], peer: str) -> dict[str, float]:
    """Our requests per second over the peer's, by concurrency."""
    rates = {(row["system"], row["concurrency"]): row["requests_per_s"] for row in rows}
    return {str(at): round(rates[("esclusa", at)] / rate, 2) for (system, at), rate in rates.items() if system == peer}


def _other_cores() -> set[int]:
    """Everything but the gateway's core, where there is more than one."""
    cores = os.sched_getaffinity(0)
    return cores - {GATEWAY_CORE} or cores


def _machine() -> dict[str, object]:
    from engine.benchmark.machine import machine_header

    return machine_header()
