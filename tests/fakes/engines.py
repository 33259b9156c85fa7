"""Engines, schedulers and requests over the fake runner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from engine.config import EngineConfig
from engine.ports import LoadedModel, Loader, Progress
from engine.requests import GenerationEvent, GenerationRequest, SamplingParams, SchedulingHints
from engine.scheduling.scheduler import Scheduler
from engine.sequence import Kind
from engine.sequence import Sequence as LiveSequence
from tests.fakes.byte_tokenizer import EOS, ByteTokenizer
from tests.fakes.hang_guard import hang_guard
from tests.fakes.runner import FakeRunner

_order = count(1)


def config(**changes: Any) -> EngineConfig:
    defaults: dict[str, Any] = {
        "model": "fake",
        "block_size": 4,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
        "scheduling_policy": "fcfs",
        "cache_salt_required": False,
    }
    return EngineConfig(**{**defaults, **changes})


def loader_of(runner: FakeRunner | Callable[[], FakeRunner], tokenizer: Any = None) -> Loader:
    def load(_: EngineConfig, progress: Progress) -> LoadedModel:
        progress("weights", 50.0)
        made = runner() if callable(runner) else runner
        return LoadedModel(made, tokenizer or ByteTokenizer(), "0" * 64)

    return load


def request(request_id: str, prompt: str | Sequence[int] = "hola", **fields: Any) -> GenerationRequest:
    """Fields of `SamplingParams`, `SchedulingHints` and the request, told apart by name."""
    hints = {k: fields.pop(k) for k in list(fields) if k in SchedulingHints.__dataclass_fields__}
    sampling = {k: fields.pop(k) for k in list(fields) if k in SamplingParams.__dataclass_fields__}
    ids = tuple(prompt.encode()) if isinstance(prompt, str) else tuple(prompt)
    return GenerationRequest(
        request_id,
        ids,
        SamplingParams(**{"temperature": 0.0, **sampling}),
        scheduling=SchedulingHints(**hints),
        **fields,
    )


def sequence(prompt: Sequence[int] | int, *, max_tokens: int = 4, **fields: Any) -> LiveSequence:
    """A live sequence; an int prompt is a length, with tokens that differ between sequences."""
    order = next(_order)
    ids = list(prompt) if not isinstance(prompt, int) else [(order * 7 + i) % 250 for i in range(prompt)]
    sampling = {k: fields.pop(k) for k in list(fields) if k in SamplingParams.__dataclass_fields__}
    defaults: dict[str, Any] = {
        "request_id": f"r{order}",
        "choice": 0,
        "seed": order,
        "sampling": SamplingParams(**{"temperature": 0.0, "max_tokens": max_tokens, **sampling}),
        "token_ids": ids,
        "num_prompt_tokens": len(ids),
        "max_tokens": max_tokens,
        "order": order,
        "arrived_at": 0.0,
        "kind": Kind.GENERATE,
    }
    return LiveSequence(**{**defaults, **fields})


class Rig:
    """A scheduler and a fake runner, stepped by hand on a clock that counts steps."""

    def __init__(self, *, num_blocks: int = 64, runner: FakeRunner | None = None, **changes: Any) -> None:
        self.config = config(**changes)
        self.runner = runner or FakeRunner(num_blocks=num_blocks, block_size=self.config.block_size)
        self.runner.keep_steps = True
        self.scheduler = Scheduler(
            self.config,
            num_blocks=self.runner.num_blocks,
            block_size=self.runner.block_size,
            eos_token_ids=frozenset({EOS}),
        )
        self.now = 0.0

    def add(self, *sequences: LiveSequence) -> None:
        for item in sequences:
            self.scheduler.add(item)

    def step(self) -> None:
        self.now += 1.0
        step = self.scheduler.schedule(self.now)
        self.scheduler.check_integrity()
        if step.work:
            self.scheduler.update(step, self.runner.execute(step), self.now)
        self.scheduler.check_integrity()

    def run(self, limit: int = 10_000) -> int:
        """Step until nothing is left; returns the steps. Raises when that takes more than `limit`."""
        for done in range(limit):
            if not self.scheduler.has_work:
                return done
            self.step()
            self.scheduler.take_ended()
        raise AssertionError(f"still working after {limit} steps")


async def until(condition: Callable[[], bool]) -> None:
    """Wait for the engine's own thread; its snapshot may be 50 ms old."""
    async with hang_guard():
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def collect(stream: Any) -> list[GenerationEvent]:
    return [event async for event in stream]


def text_of(events: Sequence[GenerationEvent], index: int = 0) -> str:
    return "".join(event.text for event in events if event.index == index)


def tokens_of(events: Sequence[GenerationEvent], index: int = 0) -> list[int]:
    return [token for event in events if event.index == index for token in event.token_ids]
