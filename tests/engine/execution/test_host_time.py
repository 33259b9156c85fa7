"""What a step costs beside the model, at sixty-four running sequences, in CPU time of its thread."""

from __future__ import annotations

import time

import pytest

from engine.metrics.stats import StatsRecorder
from engine.ports import LoadedModel
from engine.requests import GenerationEvent
from engine.serving.core import EngineCore, Submission
from engine.step import Step, StepResult
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.engines import config, request
from tests.fakes.runner import FakeRunner

CROWD = 64


class TimedRunner(FakeRunner):
    """Adds up its own CPU time."""

    cpu_s = 0.0

    def execute(self, step: Step) -> StepResult:
        started = time.thread_time()
        result = super().execute(step)
        self.cpu_s += time.thread_time() - started
        return result


@pytest.mark.parametrize("policy", ["fcfs", "fair"])
def test_planning_and_reporting_sixty_four_tokens_stays_cheap(policy: str) -> None:
    runner = TimedRunner(num_blocks=CROWD * 20, next_token=lambda *_: 97)
    settings = config(max_num_seqs=CROWD, max_num_batched_tokens=512, scheduling_policy=policy)
    core = EngineCore(settings, LoadedModel(runner, ByteTokenizer()), StatsRecorder())
    spent: list[float] = []
    for i in range(CROWD):
        asked = request(f"r{i}", "hola", share_key=f"s{i % 4}", max_tokens=70)
        core.add(Submission(asked, 70, 0, ticket=i))
    for _ in range(60):
        before, runner_before = time.thread_time(), runner.cpu_s
        outputs = core.step()
        spent.append(time.thread_time() - before - (runner.cpu_s - runner_before))
        assert len(outputs) == CROWD
        assert all(isinstance(output.item, GenerationEvent) for output in outputs)
    assert min(spent[10:]) < 0.002
