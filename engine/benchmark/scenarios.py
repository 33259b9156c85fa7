"""Scenarios beyond one throughput figure, as fields of our row: `python -m engine.benchmark.scenarios < job.json`.

A warm prefix, a long prompt beside running streams, the price of sampling, and memory; all with the configuration that
serving has by default (prefix cache on, prefill paced).
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from engine.benchmark.child import report_progress
from engine.benchmark.load import GREEDY, follow, run
from engine.benchmark.machine import peak_rss_bytes
from engine.benchmark.measure import Trace, crowded_gaps, gaps_within, percentile, rounded
from engine.benchmark.memory import count_parameters, model_bytes
from engine.benchmark.workload import FIRST_ID, LAST_ID, BenchRequest
from engine.config import EngineConfig
from engine.execution.device import resolve_device, resolve_dtype
from engine.execution.runner import ModelRunner, load_model
from engine.ports import LoadedModel, Progress
from engine.serving.client import AsyncEngine
from engine.weights.loader import open_checkpoint

SAMPLED: Mapping[str, Any] = {"temperature": 0.8, "top_p": 0.95, "seed": 0}
CROWD_TRIES = 5
STREAM_TIMEOUT_S = 300.0

Fields = dict[str, float | int | None]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens and repetitions; the defaults are those that the published figures are about."""

    prefix_tokens: int = 1024
    tail_tokens: int = 16
    prefix_rounds: int = 7
    streams: int = 16
    prompt_tokens: int = 32
    idle_tokens: int = 32
    """That each stream gives while nothing else runs, before each long prompt."""
    prefill_tokens: int = 2000
    prefill_rounds: int = 5
    running: int = 64
    decode_tokens: int = 48
    sampling_rounds: int = 4
    kv_blocks: int = 768
    """Of 16 tokens. So few that the scenarios write the whole pool: memory that is only promised costs nothing."""


async def measure(job: Mapping[str, Any]) -> Fields:
    sizes = Sizes(**job.get("sizes", {}))
    loaded: list[ModelRunner] = []

    def load(config: EngineConfig, progress: Progress) -> LoadedModel:
        model = load_model(config, progress)
        if isinstance(model.runner, ModelRunner):
            loaded.append(model.runner)
        return model

    config = EngineConfig(
        model=job["model"],
        quantization=job.get("quantization"),
        dtype=job.get("dtype", "auto"),
        device=job.get("device", "auto"),
        max_model_len=job.get("max_model_len", 2048),
        num_kv_blocks=sizes.kv_blocks,
        threads=job.get("threads"),
        kernel_backend=job.get("kernel_backend", "auto"),
    )
    engine = AsyncEngine(config, loader=load)
    await engine.start(None)
    rng = random.Random(job.get("seed", 0))
    try:
        await _warm_up(engine, rng, sizes)
        fields = await warm_prefix(engine, rng, sizes)
        report_progress(f"warm prefix: {fields}")
        beside = await prefill_beside_streams(engine, rng, sizes)
        report_progress(f"prefill beside streams: {beside}")
        sampling = await sampling_overhead(engine, rng, sizes)
        report_progress(f"sampling: {sampling}")
        memory = _memory(engine, loaded[0], config)
        return fields | beside | sampling | memory
    finally:
        await engine.close()


async def warm_prefix(engine: AsyncEngine, rng: random.Random, sizes: Sizes) -> Fields:
    """Time to first token of two prompts with one prefix, each pair with a prefix of its own."""
    cold: list[float] = []
    warm: list[float] = []
    for _ in range(sizes.prefix_rounds):
        prefix = _ids(rng, sizes.prefix_tokens)
        for times in (cold, warm):
            (trace,) = await run(engine, (BenchRequest(prefix + _ids(rng, sizes.tail_tokens), 1),))
            times.append(trace.tokens[0] - trace.submitted_s)
    return {
        "ttft_cold_s": rounded(median(cold), 5),
        "ttft_warm_s": rounded(median(warm), 5),
        "warm_fraction": rounded(median(warm) / median(cold)),
    }


async def prefill_beside_streams(engine: AsyncEngine, rng: random.Random, sizes: Sizes) -> Fields:
    """Each round: the streams alone, then a long prompt beside them. The 99th percentile of a round counts only times
    between tokens that overlap its window; medians over the rounds are reported."""
    most = engine.max_model_len - sizes.prompt_tokens
    requests = [BenchRequest(_ids(rng, sizes.prompt_tokens), most) for _ in range(sizes.streams)]
    traces = [Trace(time.monotonic()) for _ in requests]
    streams = [asyncio.create_task(follow(engine, r, t)) for r, t in zip(requests, traces, strict=True)]
    idle, beside, first_token_s, samples = [], [], [], 0
    try:
        await _advance(streams, traces, sizes.idle_tokens)
        for _ in range(sizes.prefill_rounds):
            begun = time.monotonic()
            await _advance(streams, traces, sizes.idle_tokens)
            idle.append(_p99(gaps_within(traces, begun, time.monotonic())))
            (prompt,) = await run(engine, (BenchRequest(_ids(rng, sizes.prefill_tokens), 1),))
            arrived = prompt.tokens[0]
            await _advance(streams, traces, 2)
            window = gaps_within(traces, prompt.submitted_s, arrived)
            beside.append(_p99(window))
            samples += len(window)
            first_token_s.append(arrived - prompt.submitted_s)
    finally:
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    return {
        "itl_p99_idle_s": rounded(median(idle), 5),
        "itl_p99_beside_prefill_s": rounded(median(beside), 5),
        "prefill_stretch": rounded(median(beside) / median(idle), 2),
        "itl_samples_beside_prefill": samples,
        "ttft_beside_streams_s": rounded(median(first_token_s)),
    }


async def sampling_overhead(engine: AsyncEngine, rng: random.Random, sizes: Sizes) -> Fields:
    """Seconds a step while all run, greedy and sampled in turn. The fraction is the median over pairs of runs."""
    greedy: list[float] = []
    sampled: list[float] = []
    for _ in range(sizes.sampling_rounds):
        for steps, sampling in ((greedy, GREEDY), (sampled, SAMPLED)):
            workload = [BenchRequest(_ids(rng, sizes.prompt_tokens), sizes.decode_tokens) for _ in range(sizes.running)]
            steps.append(await _crowded_step_s(engine, workload, sampling))
    return {
        "greedy_step_s": rounded(median(greedy), 5),
        "sampled_step_s": rounded(median(sampled), 5),
        "sampling_overhead_fraction": rounded(median(s / g - 1.0 for g, s in zip(greedy, sampled, strict=True))),
    }


async def _crowded_step_s(engine: AsyncEngine, workload: list[BenchRequest], sampling: Mapping[str, Any]) -> float:
    """Median over the steps in which all run. On a busy machine the first may have ended before the last was admitted:
    such a run measures nothing and is repeated."""
    for _ in range(CROWD_TRIES):
        if gaps := crowded_gaps(await run(engine, workload, None, sampling)):
            return median(gaps)
    raise RuntimeError(f"{len(workload)} requests never ran all at once: give them more tokens, or fewer requests")


def _memory(engine: AsyncEngine, runner: ModelRunner, config: EngineConfig) -> Fields:
    """Beside the model's parameters in the precision asked for; see `engine.benchmark.memory`."""
    files = open_checkpoint(config.model).files
    file_bytes = sum(file.stat().st_size for file in files)
    dtype = resolve_dtype(config.dtype, resolve_device(config.device))
    model = model_bytes(count_parameters(files), file_bytes, config.quantization, dtype)
    kv_cache_bytes, peak = runner.kv_cache_bytes, peak_rss_bytes()
    kv = engine.stats().kv
    return {
        "model_bytes": model,
        "model_file_bytes": file_bytes,
        "kv_cache_bytes": kv_cache_bytes,
        "kv_written_fraction": rounded(kv.cached_blocks / kv.num_blocks),
        "scenario_peak_rss_bytes": peak,
        "peak_rss_over_model_and_kv_bytes": None if peak is None else peak - model - kv_cache_bytes,
    }


async def _warm_up(engine: AsyncEngine, rng: random.Random, sizes: Sizes) -> None:
    """Kernels, page tables, and the pace of prefill, which the engine learns from its first steps."""
    for size in (sizes.prefix_tokens, sizes.prefill_tokens):
        await run(engine, (BenchRequest(_ids(rng, size), 4),))
    await run(engine, [BenchRequest(_ids(rng, sizes.prompt_tokens), 8) for _ in range(sizes.running)])


async def _advance(streams: list[asyncio.Task[None]], traces: list[Trace], tokens: int) -> None:
    """Return when every stream has given `tokens` more. Raises what ended a stream, or `TimeoutError`."""
    goals = [len(trace.tokens) + tokens for trace in traces]
    async with asyncio.timeout(STREAM_TIMEOUT_S):
        while any(len(trace.tokens) < goal for trace, goal in zip(traces, goals, strict=True)):
            for stream in streams:
                if stream.done():
                    stream.result()
                    raise RuntimeError("a stream ended before it was measured")
            await asyncio.sleep(0.002)


def _p99(gaps: list[float]) -> float:
    return percentile(gaps, 99) or 0.0


def _ids(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randint(FIRST_ID, LAST_ID) for _ in range(count))


if __name__ == "__main__":
    json.dump(asyncio.run(measure(json.load(sys.stdin))), sys.stdout)
