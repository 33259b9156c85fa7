"""Run ours and the named peers in turn on one workload and compare. Each system is a child process."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.benchmark.machine import machine_header
from engine.benchmark.workload import draw

PEERS = ("hf-sequential", "hf-static", "vllm", "llama-cpp", "llama-cpp-q8_0", "llama-cpp-q4_0")
CHILD_TIMEOUT_S = 1800.0
VLLM_KV_GIB = "4"
ALLOCATOR = Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4")

Say = Callable[[str], None]


class BenchmarkError(Exception):
    """A system could not be measured; the message says which one, why, and what to pass."""


@dataclass(frozen=True, slots=True)
class Peers:
    """Where the peers live; None where the operator did not say."""

    vllm_python: Path | None = None
    llama_server: Path | None = None
    scratch: Path = Path("~/.cache/esclusa/bench")


def run_suite(job: dict[str, Any], vs: Sequence[str], peers: Peers, *, repeats: int, say: Say) -> dict[str, Any]:
    """Measure A B A B, report medians. `ratio[peer]` is our output rate over the peer's, `single_ratio` likewise.

    Raises `BenchmarkError`.
    """
    unknown = [name for name in vs if name not in PEERS]
    if unknown:
        raise BenchmarkError(f"unknown peer {', '.join(unknown)}; there are {', '.join(PEERS)}")
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in ("esclusa", *vs)}
    for repeat in range(repeats):
        for name in runs:
            say(f"{name}: run {repeat + 1} of {repeats}")
            row = _run(name, job, peers)
            say(f"{name}: {row['output_tokens_per_s']} tok/s, one stream {row.get('single_stream_tokens_per_s')} tok/s")
            runs[name].append(row)
    rows = {name: _median(measured) for name, measured in runs.items()}
    ours = rows["esclusa"]
    return {
        **ours,
        "workload": {key: job[key] for key in ("requests", "min_len", "max_len", "seed")},
        "model": Path(job["model"]).name,
        "quantization": job.get("quantization"),
        "rows": list(rows.values()),
        "ratio": {name: _ratio(ours, rows[name], "output_tokens_per_s") for name in vs},
        "single_ratio": {name: _ratio(ours, rows[name], "single_stream_tokens_per_s") for name in vs},
        "machine": machine_header(),
    }


def _run(name: str, job: dict[str, Any], peers: Peers) -> dict[str, Any]:
    scratch = peers.scratch.expanduser()
    model = Path(job["model"])
    job = {**job, "system": name}
    environment = {**os.environ, "USE_HUB_KERNELS": "0", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if name == "esclusa":
        return _child([sys.executable, "-m", "engine.benchmark.ours"], job, environment)
    if name.startswith("llama-cpp"):
        if peers.llama_server is None:
            raise BenchmarkError("llama-cpp needs `--llama-server PATH`")
        kind = name.removeprefix("llama-cpp").lstrip("-").upper() or "BF16"
        from engine.benchmark.checkpoint import llama_gguf

        job["llama_server"] = str(peers.llama_server)
        job["gguf"] = str(llama_gguf(model, scratch, peers.llama_server.with_name("llama-quantize"), kind))
        return _child([sys.executable, "-m", "engine.benchmark.llama_cpp"], job, environment)
    from engine.benchmark.checkpoint import hugging_face_directory

    job["hf_model"] = str(hugging_face_directory(model, scratch))
    if name.startswith("hf-"):
        return _child([sys.executable, "-m", "engine.benchmark.huggingface"], job, environment)
    if peers.vllm_python is None:
        raise BenchmarkError("vllm needs `--vllm-python PATH` (the Python of vLLM's own environment)")
    workload = draw(job["requests"], job["min_len"], job["max_len"], job["seed"])
    job["token_requests"] = [(request.prompt_token_ids, request.output_tokens) for request in workload]
    openmp = next(peers.vllm_python.parent.parent.rglob("libiomp5.so"), None)
    preloads = [str(library) for library in (ALLOCATOR, openmp) if library is not None and library.exists()]
    environment |= {
        "LD_PRELOAD": ":".join(preloads),
        "VLLM_CPU_KVCACHE_SPACE": VLLM_KV_GIB,
        "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
    }
    script = Path(__file__).with_name("vllm_peer.py")
    return _child([str(peers.vllm_python), str(script)], job, environment)


def _child(command: list[str], job: dict[str, Any], environment: dict[str, str]) -> dict[str, Any]:
    try:
        ended = subprocess.run(
            command, input=json.dumps(job), capture_output=True, text=True, env=environment, timeout=CHILD_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchmarkError(f"{job['system']} could not be run: {error}") from error
    if ended.returncode != 0 or not ended.stdout.strip():
        raise BenchmarkError(f"{job['system']} ended with {ended.returncode}:\n{ended.stderr[-2000:]}")
    row: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return row


def _median(rows: list[dict[str, Any]]) -> dict[str, Any]:
    merged = dict(rows[0])
    for key, first in rows[0].items():
        values = [row[key] for row in rows if isinstance(row.get(key), int | float)]
        if isinstance(first, int | float) and values:
            merged[key] = type(first)(statistics.median(values))
    rates = [row["output_tokens_per_s"] for row in rows]
    merged["output_tokens_per_s_range"] = [min(rates), max(rates)]
    return merged


def _ratio(ours: dict[str, Any], peer: dict[str, Any], key: str) -> float | None:
    return round(ours[key] / peer[key], 2) if ours.get(key) and peer.get(key) else None
