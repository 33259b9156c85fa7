"""Drive our engine with token ids and note when each token came. Knows no workload and no figures."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

from engine.benchmark.measure import Trace
from engine.benchmark.workload import BenchRequest
from engine.requests import GenerationRequest, SamplingParams
from engine.serving.client import AsyncEngine

SALT = b"benchmark"
GREEDY: Mapping[str, Any] = {"temperature": 0.0, "top_p": 1.0, "seed": 0}
_numbers = itertools.count(1)


async def follow(
    engine: AsyncEngine, request: BenchRequest, trace: Trace, sampling: Mapping[str, Any] = GREEDY
) -> None:
    """Generate to the end; `trace.tokens` grows as tokens come."""
    async for event in engine.generate(
        GenerationRequest(
            request_id=f"bench-{next(_numbers)}",
            prompt_token_ids=request.prompt_token_ids,
            sampling=SamplingParams(max_tokens=request.output_tokens, ignore_eos=True, **sampling),
            cache_salt=SALT,
        )
    ):
        now = time.monotonic()
        trace.tokens.extend(now for _ in event.token_ids)


async def run(
    engine: AsyncEngine,
    workload: Sequence[BenchRequest],
    concurrency: int | None = None,
    sampling: Mapping[str, Any] = GREEDY,
) -> list[Trace]:
    """All requests to their end, at most `concurrency` at once; traces in the order of `workload`."""
    gate = asyncio.Semaphore(concurrency or len(workload))

    async def one(request: BenchRequest) -> Trace:
        async with gate:
            trace = Trace(time.monotonic())
            await follow(engine, request, trace, sampling)
            return trace

    return list(await asyncio.gather(*(one(request) for request in workload)))
