"""Random lives of requests in a whole engine core: every waiter is told exactly once, and what it is told adds up."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from engine.errors import EngineError, EngineFault
from engine.metrics.stats import StatsRecorder
from engine.ports import LoadedModel
from engine.requests import EngineUsage, FinishReason, GenerationEvent
from engine.serving.core import EngineCore, EngineOutput, Submission
from engine.serving.isolation import StepFailure
from engine.serving.validation import request_limits, validate
from engine.step import Step
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.engines import config, request
from tests.fakes.runner import FakeRunner


class CoreStates(RuleBasedStateMachine):
    names = Bundle("names")

    @initialize(policy=st.sampled_from(["fcfs", "priority", "fair"]), num_blocks=st.integers(12, 40))
    def begin(self, policy: str, num_blocks: int) -> None:
        self.now = 0.0
        self.failing: set[str] = set()
        runner = FakeRunner(num_blocks=num_blocks, block_size=4, max_model_len=48, before_step=self._break)
        settings_of = config(scheduling_policy=policy, max_num_batched_tokens=12, max_num_seqs=5)
        model = LoadedModel(runner, ByteTokenizer())
        self.runner = runner
        self.core = EngineCore(settings_of, model, StatsRecorder(), lambda: self.now)
        self.limits = request_limits(settings_of, runner)
        self.told: dict[str, list[EngineOutput]] = {}
        self.asked: dict[str, Any] = {}

    def _break(self, step: Step) -> None:
        if any(work.sequence.request_id in self.failing for work in step.work):
            raise RuntimeError("kernel")

    @rule(
        target=names,
        length=st.integers(1, 20),
        family=st.integers(0, 1),
        n=st.integers(1, 3),
        max_tokens=st.integers(1, 10),
        stop=st.sampled_from([(), ("a",), ("q", "z1")]),
        share=st.sampled_from("ab"),
        lifetime=st.sampled_from([None, None, 6.0]),
        echo=st.booleans(),
    )
    def add(
        self,
        length: int,
        family: int,
        n: int,
        max_tokens: int,
        stop: tuple[str, ...],
        share: str,
        lifetime: float | None,
        echo: bool,
    ) -> str:
        name = f"r{len(self.asked)}"
        asked = request(
            name,
            [family * 90 + i for i in range(length)],
            n=n,
            max_tokens=max_tokens,
            stop=stop,
            share_key=share,
            temperature=1.0,
            prompt_logprobs=0 if echo else None,
            deadline_s=None if lifetime is None else self.now + lifetime,
        )
        self.core.add(Submission(asked, validate(asked, self.limits), seed=len(self.asked), fingerprint=name.encode()))
        self.asked[name] = asked
        self.told[name] = []
        return name

    def _restart(self) -> list[EngineOutput]:
        """What the loop does when all requests of a step fail, or lone ones three times running."""
        step = self.core.current_step
        assert step is not None
        assert {work.sequence.request_id for work in step.work} <= self.failing
        deliveries = self.core.fail_all(EngineFault("restart"))
        self.core = EngineCore(self.core.config, self.core.model, StatsRecorder(), lambda: self.now)
        return deliveries

    @rule(steps=st.integers(1, 3))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.now += 1.0
            try:
                deliveries = self.core.step()
            except StepFailure:
                deliveries = self._restart()
            for delivery in deliveries:
                self.told[delivery.request_id].append(delivery)

    @rule(name=names, reason=st.sampled_from([FinishReason.ABORT, FinishReason.STOP]))
    def end(self, name: str, reason: FinishReason) -> None:
        self.core.end(name, reason, "told to")
        self.core.end(name, reason, "told to")

    @rule(name=names)
    def break_steps_with(self, name: str) -> None:
        self.failing.add(name)

    @rule(name=names)
    def break_a_row_of(self, name: str) -> None:
        self.runner.row_faults[name] = EngineFault("row")

    @invariant()
    def sound(self) -> None:
        if hasattr(self, "core"):
            self.core.scheduler.check_integrity()
            for deliveries in self.told.values():
                assert not any(delivery.last for delivery in deliveries[:-1])

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        for _ in range(3000):
            if not self.core.has_work:
                break
            self.step(1)
        kv = self.core.scheduler.kv
        assert kv.pool.num_free == kv.pool.num_blocks
        assert self.core.num_requests == 0
        for name, deliveries in self.told.items():
            assert deliveries[-1].last
            items = [delivery.item for delivery in deliveries]
            if not isinstance(items[-1], EngineError):
                self._adds_up(self.asked[name], [item for item in items if isinstance(item, GenerationEvent)])

    def _adds_up(self, asked: Any, events: list[GenerationEvent]) -> None:
        usages = [event.usage for event in events if event.usage is not None]
        tokens = sum(len(event.token_ids) for event in events)
        (usage,) = usages
        assert usage == EngineUsage(len(asked.prompt_token_ids), tokens, usage.cached_tokens)
        for index in range(asked.sampling.n):
            mine = [event for event in events if event.index == index]
            assert [event.finish_reason is not None for event in mine] == [False] * (len(mine) - 1) + [True]
            last = mine[-1]
            ids = [token for event in mine for token in event.token_ids]
            assert len(ids) <= asked.sampling.max_tokens
            whole = bytes(token for token in ids if token < 256).decode("utf-8", "replace")
            text = "".join(event.text for event in mine)
            if last.stop_reason in asked.sampling.stop:
                assert whole.startswith(text + str(last.stop_reason))
            else:
                assert text == whole
                assert not any(stop in text for stop in asked.sampling.stop)


CoreStates.TestCase.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestCoreStates = CoreStates.TestCase
