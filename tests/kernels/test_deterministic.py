"""The promise of `deterministic=True`: a row's bits are the same alone, in a batch, and in any chunking."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import dispatch
from kernels.contracts import Ops
from tests.kernels.conftest import Batch
from tests.kernels.test_decoder import Model

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(params=["cpu", "reference"])
def ops(request: pytest.FixtureRequest, exact: Ops) -> Ops:
    return exact if request.param == "cpu" else dispatch.load("reference", device="cpu", deterministic=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_linear_rows_do_not_depend_on_their_neighbors(ops: Ops, dtype: torch.dtype, quantization: str | None) -> None:
    packed = ops.pack_linear((torch.randn(96, 160) / 13).to(dtype), quantization=quantization)
    x = torch.randn(64, 160).to(dtype)
    whole = ops.linear(x, packed)
    for size in (1, 2, 5, 7, 13, 63):
        parts = [ops.linear(part, packed) for part in torch.split(x, size)]
        assert torch.equal(whole, torch.cat(parts)), size


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "silu_mul"])
def test_row_ops_do_not_depend_on_their_neighbors(ops: Ops, dtype: torch.dtype, name: str) -> None:
    x, weight = torch.randn(64, 246).to(dtype), torch.randn(246)

    def run(rows: Tensor) -> Tensor:
        if name == "rms_norm":
            return ops.rms_norm(rows, weight, 1e-5)
        return ops.layer_norm(rows, weight, weight, 1e-5) if name == "layer_norm" else ops.silu_mul(rows)

    assert torch.equal(run(x), torch.cat([run(row) for row in torch.split(x, 1)]))


def _chunked(ops: Ops, batch: Batch, chunk: int, window: int | None) -> Tensor:
    """The prompt of a one-sequence batch, `chunk` queries a call."""
    cache, length = batch.cache(ops), batch.kv_lens[0]
    parts = []
    for start in range(0, length, chunk):
        stop = min(length, start + chunk)
        starts = torch.tensor([0, stop - start], dtype=torch.int32)
        lengths = torch.tensor([stop], dtype=torch.int32)
        plan = ops.plan_attention(
            starts, lengths, batch.tables, batch.block_size, batch.heads, batch.kv_heads, batch.dim
        )
        parts.append(ops.paged_attention(batch.q[start:stop], cache, plan, 0.2, window))
    return torch.cat(parts)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 37])
@pytest.mark.parametrize("block_size", [16, 5])
def test_attention_does_not_depend_on_the_chunking(
    ops: Ops, dtype: torch.dtype, window: int | None, block_size: int
) -> None:
    batch = Batch([150], [150], heads=6, kv_heads=2, dim=32, block_size=block_size, dtype=dtype)
    whole = _chunked(ops, batch, 150, window)
    for chunk in (1, 7, 64):
        assert torch.equal(whole, _chunked(ops, batch, chunk, window)), chunk


def test_a_decode_gives_the_same_bits_alone_and_among_64(ops: Ops) -> None:
    lengths = torch.randint(1, 400, (64,)).tolist()
    batch = Batch([1] * 64, lengths, heads=3, kv_heads=1, dim=64)
    together = batch.attend(ops)
    cache = batch.cache(ops)
    for row in range(64):
        plan = ops.plan_attention(
            torch.tensor([0, 1], dtype=torch.int32),
            torch.tensor([lengths[row]], dtype=torch.int32),
            batch.tables[row : row + 1],
            batch.block_size,
            batch.heads,
            batch.kv_heads,
            batch.dim,
        )
        assert torch.equal(ops.paged_attention(batch.q[row : row + 1], cache, plan, 0.2), together[row : row + 1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("quantization", [None, "int8"])
def test_the_whole_stack_gives_the_same_bits_alone_and_in_a_batch(
    exact: Ops, dtype: torch.dtype, quantization: str | None
) -> None:
    model = Model(dtype, quantization)
    batch = Batch([1, 40, 1, 20, 3], [30, 40, 1, 75, 90], model.heads, model.kv_heads, model.dim, dtype=dtype)
    hidden = torch.randn(65, model.hidden).to(dtype)
    together = model.run(exact, batch, hidden)[1]
    first = 0
    for sequence, (queries, length) in enumerate(zip(batch.query_lens, batch.kv_lens, strict=True)):
        alone = Batch([queries], [length], model.heads, model.kv_heads, model.dim, dtype=dtype)
        alone.keys, alone.values = [batch.keys[sequence]], [batch.values[sequence]]
        got = model.run(exact, alone, hidden[first : first + queries])[1]
        assert torch.equal(got, together[first : first + queries]), sequence
        first += queries


def test_thread_count_does_not_change_the_bits(exact: Ops) -> None:
    model = Model(torch.bfloat16)
    batch, hidden = model.batch(), torch.randn(31, model.hidden).bfloat16()
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            results.append(model.run(exact, batch, hidden)[1])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
