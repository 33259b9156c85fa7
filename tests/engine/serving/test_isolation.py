from __future__ import annotations

import math

import pytest

from engine.errors import EngineFault
from engine.sequence import Kind
from engine.serving.isolation import CulpritFault, run_in_halves
from engine.step import SampledToken, Step, StepResult, Work
from tests.fakes.engines import sequence


def work_of(slot: int, *, pool: bool = False, num_computed: int = 0) -> Work:
    item = sequence(3, kind=Kind.EMBED if pool else Kind.GENERATE)
    return Work(slot, item, num_computed, 3, True, False, pool=pool)


class Machine:
    def __init__(self, faulty_requests: set[int]) -> None:
        self.faulty_requests, self.ran = faulty_requests, []  # type: ignore[var-annotated]

    def __call__(self, step: Step) -> StepResult:
        slots = {work.slot for work in step.work}
        self.ran.append(step)
        if slots & self.faulty_requests:
            raise RuntimeError("kernel")
        return StepResult(tokens={slot: SampledToken(slot) for slot in slots})


@pytest.mark.parametrize("faulty_requests", [{0}, {63}, {5, 40}, set()])
def test_exactly_the_culprits_are_found_among_sixty_four(faulty_requests: set[int]) -> None:
    machine = Machine(faulty_requests)
    result = run_in_halves(machine, Step(1, tuple(work_of(slot) for slot in range(64))))
    assert set(result.faults) == faulty_requests
    assert all(isinstance(fault, CulpritFault) for fault in result.faults.values())
    assert set(result.tokens) == set(range(64)) - faulty_requests
    assert len(machine.ran) <= 2 + max(1, len(faulty_requests)) * 2 * math.log2(64)


def test_everything_is_shown_to_the_runner_as_fresh_and_freed_slots_once() -> None:
    machine = Machine(set())
    run_in_halves(machine, Step(1, tuple(work_of(slot) for slot in range(4)), freed_slots=(7,)))
    assert all(work.fresh for step in machine.ran for work in step.work)
    assert [step.freed_slots for step in machine.ran] == [(7,), ()]


def test_an_embedding_in_its_second_chunk_is_not_guessed() -> None:
    result = run_in_halves(Machine({1}), Step(1, (work_of(0, pool=True, num_computed=3), work_of(1), work_of(2))))
    assert isinstance(result.faults[0], EngineFault)
    assert not isinstance(result.faults[0], CulpritFault)
    assert set(result.tokens) == {2}
