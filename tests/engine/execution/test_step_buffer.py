"""The integers of a step on a device: one copy, at the same addresses each time, never overtaken by the next step."""

from __future__ import annotations

import torch

from engine.execution.batch import BatchArrays, StepTensors
from engine.execution.step_buffer import ALIGNMENT, lay_out
from engine.step import Step, Work
from tests.fakes.hand_steps import HandSequence
from tests.fakes.late_device import LateDevice

BLOCK = 4


def on(device: LateDevice | None) -> BatchArrays:
    return BatchArrays(64, 4, 8, BLOCK, torch.device("cpu"), device)


def values(tensors: StepTensors) -> list[list[int]]:
    fields = ("token_ids", "positions", "slot_mapping", "query_start", "kv_len", "block_tables")
    found = [getattr(tensors, name).flatten().tolist() for name in fields]
    return [*found, [] if tensors.last_rows is None else tensors.last_rows.tolist()]


def steps() -> list[Step]:
    """A prompt in two chunks beside one that decodes; then both decode."""
    first, second = HandSequence(list(range(10, 19))), HandSequence([7, 8])
    first.block_table, second.block_table = [3, 1, 6], [2, 5, 4]
    plans = [(0, 4, False), (4, 5, True), (9, 1, True), (10, 1, True), (11, 1, True)]
    made = []
    for index, (start, count, sample) in enumerate(plans):
        other = 0 if index == 0 else index + 1
        work = (
            Work(0, first, start, count, sample, index == 0),
            Work(1, second, other, 2 if index == 0 else 1, True, index == 0),
        )
        made.append(Step(index, work))
    first.token_ids += [100, 101, 102]
    second.token_ids += [200, 201, 202, 203]
    return made


def test_fields_are_aligned_and_do_not_overlap() -> None:
    fields, size = lay_out({"a": (3, torch.int32), "b": (1, torch.int64), "c": (100, torch.int64)})
    assert [fields[name].offset for name in "abc"] == [0, ALIGNMENT, 2 * ALIGNMENT]
    assert size == 2 * ALIGNMENT + 1024
    assert fields["c"].end(2) == 2 * ALIGNMENT + 16


def test_a_late_device_computes_each_step_on_that_steps_numbers() -> None:
    """Five steps are asked for before the device looks at the first, as far as the pinned buffers let it."""
    device, expected, seen = LateDevice(), [], []
    plain, arrays = on(None), on(device)
    for step in steps():
        expected.append(values(plain.fill(step)))
        tensors = arrays.fill(step)
        device.run(lambda tensors=tensors: seen.append(values(tensors)))  # type: ignore[misc]
    device.catch_up()
    assert seen == expected


def test_a_step_is_one_copy_and_waits_only_when_the_device_is_two_steps_behind() -> None:
    device = LateDevice()
    arrays = on(device)
    for index, step in enumerate(steps()):
        arrays.fill(step)
        assert device.copies == index + 1
        assert device.waits == max(0, index - 1)


def test_fields_stay_at_their_addresses() -> None:
    """What a CUDA graph was captured with is what later steps fill."""
    arrays = on(LateDevice())
    addresses = {
        (tensors.token_ids.data_ptr(), tensors.kv_len.data_ptr(), tensors.block_tables.data_ptr())
        for tensors in map(arrays.fill, steps())
    }
    assert len(addresses) == 1


def test_the_rows_that_get_a_token_travel_with_the_step() -> None:
    arrays = on(None)
    assert [values(arrays.fill(step))[-1] for step in steps()[:3]] == [[5], [4, 5], []]
