"""Our engine under the workload, in a process of its own: `python -m engine.benchmark.ours < job.json > row.json`."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from engine.benchmark.measure import Row, Trace, first_token_times, inter_token_times, percentile, rounded
from engine.benchmark.workload import BenchRequest, draw
from engine.client import AsyncEngine
from engine.config import EngineConfig
from engine.requests import GenerationRequest, SamplingParams

SALT = b"benchmark"
WARM_UP = (BenchRequest(tuple(range(3, 67)), 8),) * 4
SINGLE_OUTPUT_TOKENS = 128


async def measure(job: dict[str, Any]) -> Row:
    """Ready, warm up, the whole workload, then one stream alone. The prefix cache is off: prompts are random."""
    started = time.monotonic()
    config = EngineConfig(
        model=job["model"],
        quantization=job.get("quantization"),
        dtype=job.get("dtype", "auto"),
        device=job.get("device", "auto"),
        max_num_seqs=job.get("max_num_seqs", 64),
        max_model_len=job.get("max_model_len", 2048),
        max_num_batched_tokens=job.get("max_num_batched_tokens", 2048),
        kv_cache_bytes=job.get("kv_cache_bytes", 1 << 30),
        threads=job.get("threads"),
        enable_prefix_caching=False,
        kernel_backend=job.get("kernel_backend", "auto"),
    )
    engine = AsyncEngine(config)
    await engine.start(None)
    ready_s = time.monotonic() - started
    try:
        sampling = _sampling(job)
        await run(engine, WARM_UP, None, sampling)
        workload = draw(job["requests"], job["min_len"], job["max_len"], job["seed"])
        steps_before = engine.stats().steps
        begun = time.monotonic()
        traces = await run(engine, workload, job.get("concurrency"), sampling)
        seconds = time.monotonic() - begun
        stats = engine.stats()
        single_s = []
        for _ in range(job.get("single_repeats", 3)):
            begun = time.monotonic()
            await run(engine, (BenchRequest(workload[0].prompt_token_ids, SINGLE_OUTPUT_TOKENS),), None, sampling)
            single_s.append(time.monotonic() - begun)
        tokens = sum(len(trace.tokens) for trace in traces)
        return Row(
            system="esclusa",
            output_tokens=tokens,
            seconds=round(seconds, 3),
            output_tokens_per_s=round(tokens / seconds, 1),
            single_stream_tokens_per_s=round(SINGLE_OUTPUT_TOKENS / sorted(single_s)[len(single_s) // 2], 1),
            ttft_p50_s=rounded(percentile(first_token_times(traces), 50)),
            itl_p99_s=rounded(percentile(inter_token_times(traces), 99)),
            kv_waste_fraction=rounded(stats.kv_waste_fraction),
            peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            host_ms_per_step=rounded(stats.host_ms_per_step),
            ready_s=round(ready_s, 2),
            note=f"quantization {config.quantization or 'none'}, {stats.steps - steps_before} steps",
        )
    finally:
        await engine.close()


async def run(
    engine: AsyncEngine, workload: Sequence[BenchRequest], concurrency: int | None, sampling: dict[str, Any]
) -> list[Trace]:
    gate = asyncio.Semaphore(concurrency or len(workload))

    async def one(number: int, request: BenchRequest) -> Trace:
        async with gate:
            trace = Trace(time.monotonic())
            async for event in engine.generate(
                GenerationRequest(
                    request_id=f"bench-{time.monotonic_ns()}-{number}",
                    prompt_token_ids=request.prompt_token_ids,
                    sampling=SamplingParams(max_tokens=request.output_tokens, ignore_eos=True, **sampling),
                    cache_salt=SALT,
                )
            ):
                now = time.monotonic()
                trace.tokens.extend(now for _ in event.token_ids)
            return trace

    return list(await asyncio.gather(*(one(number, request) for number, request in enumerate(workload))))


def _sampling(job: dict[str, Any]) -> dict[str, Any]:
    return {"temperature": job.get("temperature", 0.0), "top_p": job.get("top_p", 1.0), "seed": 0}


if __name__ == "__main__":
    json.dump(asdict(asyncio.run(measure(json.load(sys.stdin)))), sys.stdout)
