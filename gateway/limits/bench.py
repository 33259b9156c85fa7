"""Benchmark of the limiter: the cost of reserve and settle against a running store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.flow.context import SystemClock, SystemIds
from gateway.flow.values import Estimate, LimitRule, ModelCard, Usage
from gateway.limits.service import LimitService
from gateway.limits.store import ValkeyStore
from gateway.settings import LimitSettings
from gateway.storage.valkey import ValkeyLink

HUGE = 10**12
RULES = (
    LimitRule("user-minute", "user", "user:bench/a", requests=HUGE, concurrent=100_000),
    LimitRule("user-day", "user", "user:bench/a", window="day", tokens=HUGE, warn_at=(0.8, 0.95)),
    LimitRule("department-minute", "department", "department:bench/d", requests=HUGE),
    LimitRule("department-month", "department", "department:bench/d", window="month", cost_micro=HUGE),
)


@dataclass(frozen=True, slots=True)
class LimiterCost:
    """Per request, in microseconds: waiting included, and of this process's CPU alone."""

    concurrency: int
    requests: int
    wall_us: float
    cpu_us: float


async def measure(url: str, *, concurrency: Sequence[int] = (1, 16), requests: int = 8000) -> tuple[LimiterCost, ...]:
    """Raises `RuntimeError` when the store is away: the local share would be measured instead."""
    settings, clock = LimitSettings(key_prefix=f"bench-{time.time_ns()}"), SystemClock()
    store = ValkeyStore(ValkeyLink(url), clock=clock, prefix=settings.key_prefix, timeout_s=5.0)
    limiter = LimitService(store, clock=clock, ids=SystemIds(), settings=settings, patience_s=5.0)
    await limiter.start()
    try:
        found = [await _round(limiter, number, requests) for number in concurrency]
        if limiter.degraded:
            raise RuntimeError("the store of the limits does not answer")
        await limiter.reset(RULES)
        return tuple(found)
    finally:
        await limiter.close()


async def _round(limiter: LimitService, concurrency: int, requests: int) -> LimiterCost:
    card = ModelCard("bench", "local", price_in_micro=100_000, price_out_micro=300_000)
    estimate, usage, each = Estimate(100, 200), Usage(100, 50), max(1, requests // concurrency)

    async def client() -> None:
        for _ in range(each):
            limiter.precheck(RULES)
            verdict = await limiter.reserve(RULES, estimate, card)
            if verdict.reservation is not None:
                await limiter.settle(verdict.reservation, usage, 25)

    await asyncio.gather(*[client() for _ in range(concurrency)])  # warm
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*[client() for _ in range(concurrency)])
    done = each * concurrency
    return LimiterCost(
        concurrency,
        done,
        (time.perf_counter() - wall) / done * 1e6,
        (time.process_time() - cpu) / done * 1e6,
    )
