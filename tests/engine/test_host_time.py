"""What a step costs beside the model, at sixty-four running sequences. Loose: a busy machine must not fail it."""

from __future__ import annotations

import pytest

from engine.core import EngineCore, Submission
from engine.kv_manager import KVUsage
from engine.ports import LoadedModel
from engine.requests import GenerationEvent
from engine.stats import StatsRecorder
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.engines import config, request
from tests.fakes.runner import FakeRunner

CROWD = 64


class HostTimes(StatsRecorder):
    """Keeps each step's host time apart."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.each: list[float] = []

    def step(self, num_tokens: int, host_s: float, step_s: float, kv: KVUsage) -> None:
        self.each.append(host_s)
        super().step(num_tokens, host_s, step_s, kv)


@pytest.mark.parametrize("policy", ["fcfs", "fair"])
def test_planning_and_reporting_sixty_four_tokens_stays_cheap(policy: str) -> None:
    runner = FakeRunner(num_blocks=CROWD * 20, next_token=lambda *_: 97)
    settings = config(max_num_seqs=CROWD, max_num_batched_tokens=512, scheduling_policy=policy)
    times = HostTimes()
    core = EngineCore(settings, LoadedModel(runner, ByteTokenizer()), times)
    for i in range(CROWD):
        asked = request(f"r{i}", "hola", share_key=f"s{i % 4}", max_tokens=70)
        core.add(Submission(asked, 70, 0, ticket=i))
    for _ in range(60):
        deliveries = core.step()
        assert len(deliveries) == CROWD
        assert all(isinstance(delivery.item, GenerationEvent) for delivery in deliveries)
    assert min(times.each[10:]) < 0.001
