"""Shared builders: both back ends, ragged batches over a shuffled block pool, GGUF rows.

Every test that asks for the CPU back end runs once for each instruction set that this CPU has, so that a faster machine
does not hide a fault of the kernels for a slower one. `ESCLUSA_CPU_ISA` narrows it to one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kernels import dispatch
from kernels.contracts import AttentionPlan, KVCache, Ops
from kernels.cpu import build, library

TOLERANCES = {torch.float32: (2e-5, 2e-5), torch.bfloat16: (2e-2, 2e-2)}
"""dtype -> (atol, rtol) between back ends."""


@pytest.fixture(scope="session")
def reference() -> Ops:
    return dispatch.load("reference", device="cpu")


def runnable_isas() -> list[str]:
    try:
        return build.candidate_isas()
    except build.BuildError as error:
        return [f"unusable: {error}"]


@pytest.fixture(scope="session", params=runnable_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """The instruction set that the kernels of this test use."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(build.ISA_VARIABLE, request.param)
        library.lib.cache_clear()
        usable, reason, _ = build.availability()
        if not usable:
            pytest.skip(reason)
        yield request.param
    library.lib.cache_clear()


@pytest.fixture(scope="session")
def cpu(isa: str) -> Ops:
    return dispatch.load("cpu", device="cpu")


@pytest.fixture(scope="session")
def exact(isa: str) -> Ops:
    """The CPU back end under its promise of determinism."""
    return dispatch.load("cpu", device="cpu", deterministic=True)


@pytest.fixture(autouse=True)
def _fixed_draws() -> None:
    torch.manual_seed(20260801)


def assert_near(actual: Tensor, expected: Tensor, dtype: torch.dtype | None = None) -> None:
    atol, rtol = TOLERANCES[dtype or expected.dtype]
    torch.testing.assert_close(actual, expected, atol=atol, rtol=rtol)


@dataclass
class Batch:
    """A ragged batch: sequence s has `kv_lens[s]` keys and asks for its last `query_lens[s]` positions."""

    query_lens: Sequence[int]
    kv_lens: Sequence[int]
    heads: int
    kv_heads: int
    dim: int
    block_size: int = 16
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        needed = [-(-n // self.block_size) for n in self.kv_lens]
        self.num_blocks = sum(needed) + 3
        pool = torch.randperm(self.num_blocks).tolist()
        width = max(needed, default=0) + 1
        self.tables = torch.zeros(len(needed), width, dtype=torch.int32)
        for row, count in enumerate(needed):
            for column in range(count):
                self.tables[row, column] = pool.pop()
        rows = sum(self.query_lens)
        self.q = torch.randn(rows, self.heads, self.dim).to(self.dtype)
        self.keys = [torch.randn(n, self.kv_heads, self.dim).to(self.dtype) for n in self.kv_lens]
        self.values = [torch.randn(n, self.kv_heads, self.dim).to(self.dtype) for n in self.kv_lens]

    def slots(self, sequence: int) -> Tensor:
        keys = torch.arange(self.kv_lens[sequence])
        return self.tables[sequence].long()[keys // self.block_size] * self.block_size + keys % self.block_size

    def cache(self, ops: Ops) -> KVCache:
        """Filled with NaN first: an op that reads an unused slot is found out."""
        cache = ops.allocate_kv_cache(self.num_blocks, self.block_size, self.kv_heads, self.dim, self.dtype, "cpu")
        cache.key.fill_(float("nan"))
        cache.value.fill_(float("nan"))
        for sequence, (key, value) in enumerate(zip(self.keys, self.values, strict=True)):
            ops.kv_write(cache, key, value, self.slots(sequence))
        return cache

    def plan(self, ops: Ops, window: int | None = None) -> AttentionPlan:
        starts = torch.tensor([0, *self.query_lens]).cumsum(0).to(torch.int32)
        lengths = torch.tensor(self.kv_lens, dtype=torch.int32)
        return ops.plan_attention(
            starts, lengths, self.tables, self.block_size, self.heads, self.kv_heads, self.dim, window
        )

    def attend(self, ops: Ops, scale: float = 0.2, window: int | None = None, softcap: float | None = None) -> Tensor:
        return ops.paged_attention(self.q, self.cache(ops), self.plan(ops), scale, window, softcap)
