"""Random interleavings of everything that can happen to a scheduler; its invariants hold after each."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from engine.requests import FinishReason
from engine.sequence import Sequence, Status
from engine.step import Work
from tests.fakes.engines import Rig, sequence
from tests.fakes.runner import hashed

next_token = hashed(258)


def expected_output(item: Sequence) -> list[int]:
    """What the sequence generates when nothing disturbs it: the fake model applied to its own tokens."""
    tokens = item.token_ids[: item.num_prompt_tokens]
    work = Work(slot=0, sequence=item, num_computed=0, num_new=1, sample=True, fresh=True)
    for _ in range(item.num_output):
        tokens.append(next_token(tokens, work))
    return tokens[item.num_prompt_tokens :]


class SchedulerStates(RuleBasedStateMachine):
    sequences = Bundle("sequences")

    @initialize(
        policy=st.sampled_from(["fcfs", "priority", "fair"]),
        num_blocks=st.integers(6, 24),
        budget=st.integers(1, 40),
        threshold=st.sampled_from([0, 0, 1, 5]),
        caching=st.booleans(),
        max_seqs=st.integers(1, 6),
        per_share=st.sampled_from([None, 1, 2]),
        blocks_per_share=st.sampled_from([None, 6]),
    )
    def begin(
        self,
        policy: str,
        num_blocks: int,
        budget: int,
        threshold: int,
        caching: bool,
        max_seqs: int,
        per_share: int | None,
        blocks_per_share: int | None,
    ) -> None:
        self.rig = Rig(
            num_blocks=num_blocks,
            scheduling_policy=policy,
            max_num_batched_tokens=budget,
            long_prefill_token_threshold=threshold,
            enable_prefix_caching=caching,
            max_num_seqs=max_seqs,
            max_seqs_per_share=per_share,
            max_blocks_per_share=blocks_per_share,
            prefill_tokens_beside_decode=threshold * 2,
            starvation_bound_s=5.0,
        )
        self.everyone: list[Sequence] = []

    @rule(
        target=sequences,
        family=st.integers(0, 2),
        length=st.integers(1, 16),
        max_tokens=st.integers(1, 8),
        share=st.sampled_from("ab"),
        salt=st.sampled_from([None, b"s"]),
        priority=st.integers(0, 2),
        lifetime=st.sampled_from([None, None, None, 2.5, 12.5]),
        echo=st.booleans(),
        weight=st.sampled_from([0.5, 1.0, 4.0]),
    )
    def add(
        self,
        family: int,
        length: int,
        max_tokens: int,
        share: str,
        salt: bytes | None,
        priority: int,
        lifetime: float | None,
        echo: bool,
        weight: float,
    ) -> Sequence:
        """Prompts of one family are prefixes of each other, so that they share blocks."""
        item = sequence(
            [family * 50 + i for i in range(length)],
            max_tokens=max_tokens,
            share_key=share,
            share_weight=weight,
            salt=salt,
            priority=priority,
            deadline_s=None if lifetime is None else self.rig.now + lifetime,
            arrived_at=self.rig.now,
            want_prompt_logprobs=echo,
        )
        self.rig.add(item)
        self.everyone.append(item)
        return item

    @rule(steps=st.integers(1, 4))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.rig.step()

    @rule(item=sequences, reason=st.sampled_from([FinishReason.ABORT, FinishReason.STOP]))
    def end(self, item: Sequence, reason: FinishReason) -> None:
        before = item.finish_reason
        assert self.rig.scheduler.finish(item, reason) == (before is None)
        assert item.finish_reason is (reason if before is None else before)

    @rule(item=sequences)
    def end_between_schedule_and_update(self, item: Sequence) -> None:
        rig = self.rig
        step = rig.scheduler.schedule(rig.now)
        if not step.work:
            return
        result = rig.runner.execute(step)
        rig.scheduler.finish(item, FinishReason.ABORT)
        rig.scheduler.update(step, result, rig.now)

    @rule()
    def forget_the_cache(self) -> None:
        self.rig.scheduler.kv.evict_cached()

    @invariant()
    def sound(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.rig.scheduler.check_integrity()
        for item in self.everyone:
            if item.status is Status.RUNNING:
                assert len(item.block_table) == self.rig.scheduler.kv.blocks_for(item.num_computed)
            else:
                assert item.block_table == []

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.rig.run(limit=5_000)
        kv = self.rig.scheduler.kv
        assert kv.pool.num_free == kv.pool.num_blocks
        for item in self.everyone:
            assert item.status is Status.FINISHED
            assert item.finish_reason is not FinishReason.ERROR
            assert item.token_ids[item.num_prompt_tokens :] == expected_output(item)
            if item.finish_reason is FinishReason.LENGTH:
                assert item.num_output == item.max_tokens


SchedulerStates.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestSchedulerStates = SchedulerStates.TestCase
