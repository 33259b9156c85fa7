"""A step's tensors: whatever happened before, they are those that new arrays would give."""

from __future__ import annotations

import random

import pytest
import torch

from engine.errors import EngineFault
from engine.execution.batch import BatchArrays, StepTensors
from engine.step import Step, Work
from tests.fakes.hand_steps import HandSequence

BLOCK, SLOTS, BLOCKS = 4, 6, 12
FIELDS = ("token_ids", "positions", "slot_mapping", "query_start", "kv_len")


def arrays() -> BatchArrays:
    return BatchArrays(SLOTS * BLOCKS * BLOCK, SLOTS, BLOCKS, BLOCK, torch.device("cpu"))


def tables_of(tensors: StepTensors) -> tuple[int, list[list[int]]]:
    """Width and rows; what a row holds beyond its sequence's length means nothing."""
    rows = zip(tensors.block_tables.tolist(), tensors.kv_len.tolist(), strict=True)
    return tensors.block_tables.shape[1], [row[: -(-length // BLOCK)] for row, length in rows]


class Schedule:
    """Random arrivals, chunks, decodes, rests, preemptions and ends, with long stretches in which all only decode."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.in_slot: dict[int, HandSequence] = {}
        self.fresh: set[int] = set()
        self.resting: list[HandSequence] = []

    def disturb(self) -> None:
        draw = self.random
        for slot in [slot for slot in self.in_slot if draw.random() < 0.2]:
            sequence = self.in_slot.pop(slot)
            if draw.random() < 0.5:
                sequence.block_table, sequence.num_computed = [], 0
                self.resting.append(sequence)
        for slot in set(range(SLOTS)) - set(self.in_slot):
            if draw.random() < 0.6:
                new = HandSequence([draw.randrange(1000) for _ in range(draw.randint(1, 12))])
                sequence = self.resting.pop() if self.resting and draw.random() < 0.5 else new
                if draw.random() < 0.3:
                    sequence.num_computed = len(sequence.token_ids) - 1
                self.in_slot[slot] = sequence
                self.fresh.add(slot)

    def step(self) -> Step:
        draw = self.random
        slots = list(self.in_slot)
        if draw.random() < 0.1:
            draw.shuffle(slots)
            slots = slots[: draw.randint(1, len(slots))] if slots else []
        work = [self._work(slot, self.in_slot[slot]) for slot in slots]
        return Step(0, tuple(work))

    def _work(self, slot: int, sequence: HandSequence) -> Work:
        known = len(sequence.token_ids) - sequence.num_computed
        count = self.random.randint(1, known)
        start = sequence.num_computed
        while len(sequence.block_table) * BLOCK < start + count:
            sequence.block_table = [*sequence.block_table, self.random.randrange(1000)]
        fresh = slot in self.fresh
        self.fresh.discard(slot)
        return Work(slot, sequence, start, count, count == known, fresh)

    def advance(self, step: Step) -> None:
        for work in step.work:
            work.sequence.num_computed += work.num_new  # type: ignore[attr-defined]
            if work.sample:
                work.sequence.token_ids.append(self.random.randrange(1000))
            if len(work.sequence.token_ids) >= BLOCK * BLOCKS:
                del self.in_slot[work.slot]


@pytest.mark.parametrize("seed", range(20))
def test_tensors_do_not_depend_on_the_steps_before(seed: int) -> None:
    schedule, kept = Schedule(seed), arrays()
    moved_on = 0
    for number in range(200):
        if number % 12 == 0:
            schedule.disturb()
        step = schedule.step()
        if not step.work:
            continue
        before = kept._decodes
        found = kept.fill(step)
        moved_on += before is not None and kept._decodes is before
        expected = arrays().fill(Step(0, tuple(work._replace(fresh=True) for work in step.work)))
        for name in FIELDS:
            assert torch.equal(getattr(found, name), getattr(expected, name)), (number, name)
        assert found.row_starts == expected.row_starts
        assert tables_of(found) == tables_of(expected), number
        if schedule.random.random() > 0.05:
            schedule.advance(step)
    assert moved_on > 20


def test_a_step_that_is_repeated_gives_the_same_tensors() -> None:
    sequence = HandSequence([1, 2, 3], block_table=[7], num_computed=2)
    step = Step(0, (Work(0, sequence, 2, 1, True, True),))
    kept = arrays()
    assert kept.fill(step).positions.tolist() == kept.fill(step).positions.tolist() == [2]


def test_a_short_table_is_refused_and_later_steps_are_laid_out_anew() -> None:
    sequence, kept = HandSequence([1, 2, 3, 4, 5], block_table=[7], num_computed=3), arrays()
    kept.fill(Step(0, (Work(0, sequence, 3, 1, True, True),)))
    with pytest.raises(EngineFault, match="1 blocks for 5 tokens"):
        kept.fill(Step(1, (Work(0, sequence, 4, 1, True, False),)))
    sequence.block_table = [7, 9]
    found = kept.fill(Step(2, (Work(0, sequence, 4, 1, True, False),)))
    assert (found.slot_mapping.tolist(), found.block_tables.tolist()) == ([9 * BLOCK], [[7, 9]])
