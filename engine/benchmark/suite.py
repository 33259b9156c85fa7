"""Run ours and the named peers in turn on one workload and compare. Each system is a child process."""

from __future__ import annotations

import os
import resource
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.benchmark.child import BenchmarkError, Say, run_child
from engine.benchmark.machine import busy_cpu_s, machine_header
from engine.benchmark.workload import draw

PEERS = ("hf-sequential", "hf-static", "vllm", "llama-cpp", "llama-cpp-q8_0", "llama-cpp-q4_0")
VLLM_KV_GIB = "4"
QUIET_FRACTION = 0.1
"""Of the cores for processes that are not measured; above it, figures are about them as well."""
ALLOCATOR = Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4")


@dataclass(frozen=True, slots=True)
class Peers:
    """The paths of the peers; None where the operator gave none. `time_limit_s`: of one run of one peer that can
    measure a part of the workload when all of it would take longer."""

    vllm_python: Path | None = None
    llama_server: Path | None = None
    scratch: Path = Path("~/.cache/esclusa/bench")
    time_limit_s: float = 240.0


def run_suite(
    job: Mapping[str, Any],
    vs: Sequence[str],
    peers: Peers,
    *,
    repeats: int,
    say: Say,
    scenarios: bool = False,
) -> dict[str, Any]:
    """Measure A B A B, report medians. `ratio[peer]` is our output rate over the peer's, `single_ratio` likewise.

    `scenarios` adds the fields of `engine.benchmark.scenarios` to our row. A peer that fails while it runs is named in
    `failed` with the reason, and the others are measured all the same. Raises `BenchmarkError` for an unknown peer, a
    peer without its path, and when ours cannot be measured.
    """
    _refuse(vs, peers)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in ("esclusa", *vs)}
    failed: dict[str, str] = {}
    for repeat in range(repeats):
        for name, measured in runs.items():
            if name in failed:
                continue
            say(f"{name}: run {repeat + 1} of {repeats}")
            try:
                row = _run(name, job, peers, say)
            except BenchmarkError as error:
                if name == "esclusa":
                    raise
                failed[name] = str(error)
                say(f"{name}: failed: {error}")
                continue
            say(f"{name}: {row['output_tokens_per_s']} tok/s, one stream {row.get('single_stream_tokens_per_s')} tok/s")
            measured.append(row)
    rows = {name: median_row(measured) for name, measured in runs.items() if measured}
    ours = rows["esclusa"]
    if scenarios:
        say("esclusa: scenarios (warm prefix, prefill beside streams, sampling, memory)")
        command = [sys.executable, "-m", "engine.benchmark.scenarios"]
        ours |= run_child(command, job, name="scenarios", say=say, environment=_environment())
    return {
        **ours,
        "workload": {key: job[key] for key in ("requests", "min_len", "max_len", "seed")},
        "model": Path(job["model"]).name,
        "quantization": job.get("quantization"),
        "rows": list(rows.values()),
        "ratio": {name: _ratio(ours, rows.get(name), "output_tokens_per_s") for name in vs},
        "single_ratio": {name: _ratio(ours, rows.get(name), "single_stream_tokens_per_s") for name in vs},
        "failed": failed,
        "machine": machine_header(),
    }


def _refuse(vs: Sequence[str], peers: Peers) -> None:
    unknown = [name for name in vs if name not in PEERS]
    if unknown:
        raise BenchmarkError(f"unknown peer {', '.join(unknown)}; there are {', '.join(PEERS)}")
    if peers.llama_server is None and any(name.startswith("llama-cpp") for name in vs):
        raise BenchmarkError("llama-cpp needs `--llama-server PATH`")
    if peers.vllm_python is None and "vllm" in vs:
        raise BenchmarkError("vllm needs `--vllm-python PATH` (the Python of vLLM's own environment)")
    for path in (peers.llama_server, peers.vllm_python):
        if path is not None and not path.is_file():
            raise BenchmarkError(f"there is no file {path}")


def _run(name: str, job: Mapping[str, Any], peers: Peers, say: Say) -> dict[str, Any]:
    scratch = peers.scratch.expanduser()
    model = Path(job["model"])
    environment = _environment()
    job = {**job, "system": name, "time_limit_s": peers.time_limit_s}
    if name == "esclusa":
        command = [sys.executable, "-m", "engine.benchmark.ours"]
    elif name.startswith("llama-cpp") and peers.llama_server is not None:
        from engine.benchmark.checkpoint import llama_gguf

        kind = name.removeprefix("llama-cpp").lstrip("-").upper() or "BF16"
        job["llama_server"] = str(peers.llama_server)
        job["gguf"] = str(llama_gguf(model, scratch, peers.llama_server.with_name("llama-quantize"), kind))
        command = [sys.executable, "-m", "engine.benchmark.llama_cpp"]
    else:
        from engine.benchmark.checkpoint import hugging_face_directory

        job["hf_model"] = str(hugging_face_directory(model, scratch))
        command = [sys.executable, "-m", "engine.benchmark.huggingface"]
        if name == "vllm" and peers.vllm_python is not None:
            workload = draw(job["requests"], job["min_len"], job["max_len"], job["seed"])
            job["token_requests"] = [(request.prompt_token_ids, request.output_tokens) for request in workload]
            command = [str(peers.vllm_python), str(Path(__file__).with_name("vllm_peer.py"))]
            environment |= _vllm_environment(peers.vllm_python)
    job["spawned_s"] = begun = time.monotonic()
    busy_s, own_s = busy_cpu_s(), _children_cpu_s()
    row = run_child(command, job, name=name, say=say, environment=environment)
    if busy_s is not None and (now_busy_s := busy_cpu_s()) is not None:
        others_s = (now_busy_s - busy_s) - (_children_cpu_s() - own_s)
        capacity_s = (time.monotonic() - begun) * len(os.sched_getaffinity(0))
        row["others_cpu_fraction"] = round(max(0.0, others_s / capacity_s), 3)
        if row["others_cpu_fraction"] > QUIET_FRACTION:
            say(f"{name}: other processes took {row['others_cpu_fraction']:.0%} of the cores: no quiet machine")
    return row


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _environment() -> dict[str, str]:
    return {**os.environ, "USE_HUB_KERNELS": "0", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def _vllm_environment(python: Path) -> dict[str, str]:
    """The environment vLLM recommends on a CPU: a thread-caching allocator, Intel's OpenMP, one thread a core."""
    openmp = next(python.parent.parent.rglob("libiomp5.so"), None)
    preloads = [str(library) for library in (ALLOCATOR, openmp) if library is not None and library.exists()]
    return {
        "LD_PRELOAD": ":".join(preloads),
        "VLLM_CPU_KVCACHE_SPACE": VLLM_KV_GIB,
        "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
    }


def median_row(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians of the numbers over repeated runs, everything else of the first; the range of the output rate besides."""
    merged = dict(rows[0])
    for key, first in rows[0].items():
        values = [row[key] for row in rows if isinstance(row.get(key), int | float)]
        if isinstance(first, int | float) and values:
            merged[key] = type(first)(statistics.median(values))
    rates = [row["output_tokens_per_s"] for row in rows]
    merged["output_tokens_per_s_range"] = [min(rates), max(rates)]
    return merged


def _ratio(ours: Mapping[str, Any], peer: Mapping[str, Any] | None, key: str) -> float | None:
    return round(ours[key] / peer[key], 2) if peer is not None and ours.get(key) and peer.get(key) else None
