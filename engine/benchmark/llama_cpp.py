"""llama.cpp's server under the workload: `python -m engine.benchmark.llama_cpp < job.json > row.json`.

Starts the given `llama-server` on a free loopback port with 16 slots, sends token arrays, and stops it again.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine.benchmark.measure import Row, Trace, first_token_times, inter_token_times, percentile, rounded
from engine.benchmark.workload import BenchRequest, draw

SLOTS = 16
CONTEXT_TOKENS = 40_960
READY_TIMEOUT_S = 120.0
SINGLE_OUTPUT_TOKENS = 128


def measure(job: dict[str, Any]) -> Row:
    port = free_port()
    threads = str(job.get("threads") or len(os.sched_getaffinity(0)))
    command = [
        job["llama_server"], "-m", job["gguf"], "--port", str(port), "--host", "127.0.0.1",
        "-t", threads, "-tb", threads, "-c", str(CONTEXT_TOKENS), "-np", str(SLOTS), "--no-webui",
    ]  # fmt: skip
    started = time.monotonic()
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        asyncio.run(_until_ready(port, server))
        ready_s = time.monotonic() - started
        workload = draw(job["requests"], job["min_len"], job["max_len"], job["seed"])
        asyncio.run(run(port, workload[:4], output_tokens=8))
        begun = time.monotonic()
        traces = asyncio.run(run(port, workload))
        seconds = time.monotonic() - begun
        singles = []
        for _ in range(3):
            begun = time.monotonic()
            asyncio.run(run(port, workload[:1], output_tokens=SINGLE_OUTPUT_TOKENS))
            singles.append(SINGLE_OUTPUT_TOKENS / (time.monotonic() - begun))
        peak = _peak_rss_bytes(server.pid)
    finally:
        server.terminate()
        server.wait(timeout=30)
    tokens = sum(request.output_tokens for request in workload)
    return Row(
        system=job["system"],
        output_tokens=tokens,
        seconds=round(seconds, 3),
        output_tokens_per_s=round(tokens / seconds, 1),
        single_stream_tokens_per_s=round(sorted(singles)[1], 1),
        ttft_p50_s=rounded(percentile(first_token_times(traces), 50)),
        itl_p99_s=rounded(percentile(inter_token_times(traces), 99)),
        peak_rss_bytes=peak,
        ready_s=round(ready_s, 2),
        note=f"{Path(job['gguf']).name}, {SLOTS} slots",
    )


async def run(port: int, workload: Sequence[BenchRequest], output_tokens: int | None = None) -> list[Trace]:
    import httpx2

    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=600, limits=limits) as client:

        async def one(request: BenchRequest) -> Trace:
            trace = Trace(time.monotonic())
            body = {
                "prompt": list(request.prompt_token_ids),
                "n_predict": output_tokens or request.output_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "cache_prompt": False,
                "stream": True,
            }
            async with client.stream("POST", "/completion", json=body) as answer:
                answer.raise_for_status()
                async for line in answer.aiter_lines():
                    if line.startswith("data:"):
                        trace.tokens.append(time.monotonic())
            return trace

        return list(await asyncio.gather(*(one(request) for request in workload)))


async def _until_ready(port: int, server: subprocess.Popen[bytes]) -> None:
    import httpx2

    deadline = time.monotonic() + READY_TIMEOUT_S
    async with httpx2.AsyncClient(timeout=2) as client:
        while time.monotonic() < deadline:
            if server.poll() is not None:
                raise RuntimeError(f"llama-server ended with {server.returncode}")
            try:
                if (await client.get(f"http://127.0.0.1:{port}/health")).status_code == httpx2.codes.OK:
                    return
            except httpx2.HTTPError:
                pass
            await asyncio.sleep(0.1)
    raise RuntimeError(f"llama-server was not ready within {READY_TIMEOUT_S:.0f} s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _peak_rss_bytes(pid: int) -> int | None:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


if __name__ == "__main__":
    json.dump(asdict(measure(json.load(sys.stdin))), sys.stdout)
