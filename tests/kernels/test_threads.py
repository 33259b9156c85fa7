"""The thread pool below the C++ kernels: callers at once, forks, and a changing number of threads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from kernels.contracts import Ops
from tests.kernels.conftest import Batch


@pytest.fixture
def four_threads(cpu: Ops) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    starts, lengths, table = (torch.zeros(shape, dtype=torch.int32) for shape in ((1,), (0,), (0, 1)))
    cpu.plan_attention(starts, lengths, table, 16, 1, 1, 16)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("four_threads")
def test_callers_at_once_get_their_own_results(cpu: Ops) -> None:
    """Two models in one process: whoever finds the pool busy computes alone, with the same bits."""
    packed = [cpu.pack_linear(torch.randn(700, 320)) for _ in range(4)]
    inputs = [torch.randn(rows, 320) for rows in (1, 9, 40, 130)]
    expected = [cpu.linear(x, p) for x, p in zip(inputs, packed, strict=True)]

    def repeat(index: int) -> bool:
        return all(torch.equal(cpu.linear(inputs[index], packed[index]), expected[index]) for _ in range(60))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(repeat, range(4)))


@pytest.mark.usefixtures("four_threads")
def test_many_short_jobs_in_a_row_never_mix(cpu: Ops) -> None:
    batches = [Batch([1, 3], [20 + 7 * i, 9], 6, 2, 16) for i in range(12)]
    expected = [batch.attend(cpu) for batch in batches]
    for _ in range(40):
        for batch, want in zip(batches, expected, strict=True):
            assert torch.equal(batch.attend(cpu), want)


def test_a_forked_child_starts_its_own_threads(cpu: Ops) -> None:
    code = """
import os, torch
torch.set_num_threads(3)
from kernels import dispatch
ops = dispatch.load("cpu", device="cpu")
packed, x = ops.pack_linear(torch.ones(900, 64)), torch.ones(20, 64)  # small: torch itself must not use threads
before = ops.linear(x, packed)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(ops.linear(x, packed), before) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "0"


def test_threads_of_their_own_leave_torch_one(cpu: Ops) -> None:
    code = """
import torch
torch.set_num_threads(3)
from kernels import dispatch
from kernels.cpu.library import THREADS
dispatch.load("cpu", device="cpu", threads="auto")
print(THREADS.current(), torch.get_num_threads())
dispatch.load("cpu", device="cpu", threads="auto")
print(THREADS.current(), torch.get_num_threads())
dispatch.load("cpu", device="cpu", threads=2)
print(THREADS.current(), torch.get_num_threads())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["3", "1", "3", "1", "2", "1"]
