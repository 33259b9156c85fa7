"""llama.cpp's server under the workload: `python -m engine.benchmark.llama_cpp < job.json > row.json`.

Starts the given `llama-server` on a free loopback port with 16 slots, sends token arrays, and stops it again. When the
whole workload would take longer than the job's `time_limit_s`, its first requests are measured and `note` says so.
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
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.benchmark.child import report_progress
from engine.benchmark.machine import peak_rss_bytes
from engine.benchmark.measure import Row, Trace, first_token_times, inter_token_times, percentile, rounded
from engine.benchmark.workload import BenchRequest, draw

SLOTS = 16
CONTEXT_TOKENS = 40_960
READY_TIMEOUT_S = 180.0
PROBE_TOKENS = 12
SINGLE_OUTPUT_TOKENS = 128
SINGLE_SHARE = 0.1
"""Of the time limit, for the repetitions of one stream."""
OVERRUN = 3.0
"""The estimate may be wrong by that factor before the run is stopped."""


def measure(job: dict[str, Any]) -> Row:
    """Results so far are reported as such when the chosen part takes `OVERRUN` times the limit."""
    limit_s = float(job.get("time_limit_s", 240.0))
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
        probe = asyncio.run(run(port, workload[:SLOTS], limit_s, output_tokens=PROBE_TOKENS))
        speed = probed_speed(probe, workload[:SLOTS])
        measured = affordable(workload, speed, limit_s)
        report_progress(
            f"prefill {speed.prompt_tokens_per_s:.0f} and decode {speed.output_tokens_per_s:.0f} tok/s on a probe: "
            f"{len(measured)} of {len(workload)} requests, about {speed.seconds(measured):.0f} s"
        )
        begun = time.monotonic()
        traces = asyncio.run(run(port, measured, OVERRUN * limit_s))
        seconds = time.monotonic() - begun
        report_progress(f"{len(measured)} requests took {seconds:.1f} s; now one stream")
        single = _single_stream(port, workload[:1], limit_s)
        peak = peak_rss_bytes(server.pid)
    finally:
        server.terminate()
        server.wait(timeout=30)
    wanted = sum(request.output_tokens for request in measured)
    tokens = min(wanted, sum(len(trace.tokens) for trace in traces))
    note = f"{Path(job['gguf']).name}, {SLOTS} slots, {len(measured)} of {len(workload)} requests"
    return Row(
        system=job["system"],
        output_tokens=tokens,
        seconds=round(seconds, 3),
        output_tokens_per_s=round(tokens / seconds, 1),
        single_stream_tokens_per_s=rounded(single, 1),
        ttft_p50_s=rounded(percentile(first_token_times(traces), 50)),
        itl_p99_s=rounded(percentile(inter_token_times(traces), 99)),
        peak_rss_bytes=peak,
        ready_s=round(ready_s, 2),
        note=note if tokens == wanted else f"{note}, stopped after {tokens} of {wanted} tokens",
    )


@dataclass(frozen=True, slots=True)
class Speed:
    """Of all slots together."""

    prompt_tokens_per_s: float
    output_tokens_per_s: float

    def seconds(self, workload: Sequence[BenchRequest]) -> float:
        prompts = sum(len(request.prompt_token_ids) for request in workload)
        return prompts / self.prompt_tokens_per_s + sum(r.output_tokens for r in workload) / self.output_tokens_per_s


def probed_speed(traces: Sequence[Trace], workload: Sequence[BenchRequest]) -> Speed:
    """Prefill until the last first token, decode after it. Where a request gave none in time: one token a second."""
    if any(not trace.tokens for trace in traces):
        return Speed(1.0, 1.0)
    submitted = min(trace.submitted_s for trace in traces)
    all_begun = max(trace.tokens[0] for trace in traces)
    ended = max(trace.tokens[-1] for trace in traces)
    prompts = sum(len(request.prompt_token_ids) for request in workload)
    decoded = sum(time_s > all_begun for trace in traces for time_s in trace.tokens)
    return Speed(prompts / max(1e-6, all_begun - submitted), max(1, decoded) / max(1e-6, ended - all_begun))


def affordable(workload: Sequence[BenchRequest], speed: Speed, limit_s: float) -> Sequence[BenchRequest]:
    """All requests, or as many slots full of them as the limit allows; at least one."""
    if speed.seconds(workload) <= limit_s:
        return workload
    count = len(workload) // SLOTS * SLOTS
    while count > SLOTS and speed.seconds(workload[:count]) > limit_s:
        count -= SLOTS
    return workload[: max(count, min(SLOTS, len(workload)))]


def _single_stream(port: int, workload: Sequence[BenchRequest], limit_s: float) -> float | None:
    """Tokens per second of one stream: the median of three, or of those that the time allowed."""
    rates: list[float] = []
    begun = time.monotonic()
    while len(rates) < 3 and (not rates or time.monotonic() - begun < SINGLE_SHARE * limit_s):
        (trace,) = asyncio.run(run(port, workload, limit_s, output_tokens=SINGLE_OUTPUT_TOKENS))
        if not trace.tokens:
            return None
        come = min(SINGLE_OUTPUT_TOKENS, len(trace.tokens))
        rates.append(come / (trace.tokens[-1] - trace.submitted_s))
    return percentile(rates, 50)


async def run(
    port: int, workload: Sequence[BenchRequest], limit_s: float, output_tokens: int | None = None
) -> list[Trace]:
    """All requests at once, streamed; after `limit_s` seconds they are ended and the traces are what has come."""
    import httpx2

    limits = httpx2.Limits(max_connections=None)
    traces = [Trace(time.monotonic()) for _ in workload]
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=None, limits=limits) as client:

        async def one(request: BenchRequest, trace: Trace) -> None:
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

        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await asyncio.gather(*(one(request, trace) for request, trace in zip(workload, traces, strict=True)))
    return traces


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


if __name__ == "__main__":
    json.dump(asdict(measure(json.load(sys.stdin))), sys.stdout)
