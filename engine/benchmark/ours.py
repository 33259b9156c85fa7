"""Our engine under the workload, in a process of its own: `python -m engine.benchmark.ours < job.json > row.json`."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from dataclasses import asdict
from typing import Any

from engine.benchmark.load import run
from engine.benchmark.machine import peak_rss_bytes
from engine.benchmark.measure import Row, first_token_times, inter_token_times, percentile, rounded
from engine.benchmark.workload import BenchRequest, draw
from engine.config import EngineConfig
from engine.serving.client import AsyncEngine

WARM_UP = (BenchRequest(tuple(range(3, 67)), 8),) * 4
SINGLE_OUTPUT_TOKENS = 128


async def measure(job: dict[str, Any]) -> Row:
    """Ready, warm up, the whole workload, then one stream alone. The prefix cache is off: prompts are random.

    Prefill is not paced unless the job says so (`mixed_step_factor`): nobody reads these streams, as in `LLMEngine`.
    """
    started = job.get("spawned_s", time.monotonic())
    config = EngineConfig(
        model=job["model"],
        quantization=job.get("quantization"),
        dtype=job.get("dtype", "auto"),
        device=job.get("device", "auto"),
        max_num_seqs=job.get("max_num_seqs", 64),
        max_model_len=job.get("max_model_len", 2048),
        max_num_batched_tokens=job.get("max_num_batched_tokens", 2048),
        kv_cache_bytes=job.get("kv_cache_bytes", 1 << 30),
        mixed_step_factor=job.get("mixed_step_factor", 0.0),
        threads=job.get("threads"),
        enable_prefix_caching=False,
        kernel_backend=job.get("kernel_backend", "auto"),
    )
    engine = AsyncEngine(config)
    await engine.start(None)
    ready_s = time.monotonic() - started
    # As the gateway does once it is up: a full collection would walk over everything that torch has imported.
    gc.collect()
    gc.freeze()
    try:
        sampling = {"temperature": job.get("temperature", 0.0), "top_p": job.get("top_p", 1.0), "seed": 0}
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
            peak_rss_bytes=peak_rss_bytes(),
            host_ms_per_step=rounded(stats.host_ms_per_step),
            ready_s=round(ready_s, 2),
            note=f"quantization {config.quantization or 'none'}, mixed_step_factor {config.mixed_step_factor:g}, "
            f"{stats.steps - steps_before} steps",
        )
    finally:
        await engine.close()


if __name__ == "__main__":
    json.dump(asdict(asyncio.run(measure(json.load(sys.stdin)))), sys.stdout)
