"""Many requests, cancelled at random moments: every block and byte comes back. And the waste of the KV cache."""

from __future__ import annotations

import asyncio
import gc
import random
from pathlib import Path

import pytest

from engine import AsyncEngine, EngineConfig, GenerationRequest, Grammar, LLMEngine, SamplingParams, SchedulingHints
from tests.fakes.engines import config, loader_of
from tests.fakes.runner import FakeRunner
from tests.fakes.small_model import save_small_llama

CANCELLATIONS = 10_000
PAGE = 4096


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


async def cancel_at_random(engine: AsyncEngine, rng: random.Random, number: int) -> None:
    sampling = SamplingParams(
        temperature=rng.choice((0.0, 1.0)),
        max_tokens=rng.randint(1, 40),
        n=rng.choice((1, 1, 1, 2)),
        grammar=Grammar("regex", "[a-z]{1,30}") if rng.random() < 0.05 else None,
        prompt_logprobs=0 if rng.random() < 0.05 else None,
    )
    prompt = tuple(rng.randrange(250) for _ in range(rng.randint(1, 30)))
    stream = engine.generate(
        GenerationRequest(
            f"r{number}",
            prompt,
            sampling,
            scheduling=SchedulingHints(rng.choice("abc"), priority=rng.randrange(3)),
            cache_salt=rng.choice((b"x", b"y")),
        )
    )
    how = rng.random()
    if how < 0.3:
        await stream.aclose()
        return
    if how < 0.4:
        engine.abort(f"r{number}", "administrator")
    async for event in stream:
        if how < 0.8 and rng.random() < 0.3:
            await stream.aclose()
        elif how < 0.9 and event.index == 0:
            engine.stop(f"r{number}", "budget")


@pytest.mark.slow
async def test_ten_thousand_cancellations_give_every_block_and_byte_back(tmp_path: Path) -> None:
    save_small_llama(tmp_path)
    settings = EngineConfig(
        str(tmp_path),
        dtype="float32",
        device="cpu",
        block_size=4,
        num_kv_blocks=160,
        max_model_len=128,
        max_num_seqs=32,
        max_num_batched_tokens=96,
    )
    engine = AsyncEngine(settings)
    await engine.start()
    rng = random.Random(0)
    after_warm_up = 0
    for first in range(0, CANCELLATIONS, 100):
        await asyncio.gather(*(cancel_at_random(engine, rng, first + i) for i in range(100)))
        if first == CANCELLATIONS // 4:
            after_warm_up = resident_bytes()
    await engine.drain()
    stats = engine.stats()
    grown = resident_bytes() - after_warm_up
    assert stats.kv.free_blocks == stats.kv.num_blocks
    assert stats.restarts == stats.step_faults == 0
    assert dict(stats.finished)["abort"] > CANCELLATIONS // 4
    assert dict(stats.finished)["error"] == 0
    assert grown < 16 * 2**20, f"{grown / 2**20:.1f} MiB more than after the first quarter"
    await engine.close()


def test_less_than_four_percent_of_the_allocated_kv_is_unused_at_sixty_four_requests() -> None:
    """The published workload: 64 requests, prompts and answers of 32 to 256 tokens, blocks of 16."""
    rng = random.Random(0)
    requests = []
    for index in range(64):
        prompt = tuple(rng.randint(3, 49_000) for _ in range(rng.randint(32, 256)))
        sampling = SamplingParams(temperature=0.0, max_tokens=rng.randint(32, 256), ignore_eos=True)
        requests.append(GenerationRequest(str(index), prompt, sampling))
    runner = FakeRunner(num_blocks=4096, block_size=16, max_model_len=2048, vocab_size=49_152, next_token=lambda *_: 7)
    engine = LLMEngine(
        config(block_size=16, max_num_seqs=64, max_num_batched_tokens=2048, scheduling_policy="fair"),
        loader=loader_of(runner),
    )
    engine.generate(requests)
    assert 0.0 < engine.stats().kv_waste_fraction < 0.04
