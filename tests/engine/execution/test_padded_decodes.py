"""Decodes padded to a fixed number of rows, as a captured graph runs them: real rows stay the same, others do nothing.

A padded row has slot -1 (nothing is written), no keys and a table of zeros.
The C++ kernels, which no graph runs, refuse it.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.execution.runner import ModelRunner
from engine.models.decoder import ForwardBatch
from tests.fakes.hand_steps import HandDriver, HandSequence
from tests.fakes.tiny_model import write_tiny_model

PROMPTS = [[40, 50, 60, 70, 80], [3, 9, 27], [5, 6]]
BLOCK = 4


@pytest.fixture(scope="module", params=["reference", "triton"])
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder)
    return ModelRunner(
        EngineConfig(
            str(folder),
            dtype="float32",
            kernel_backend=request.param,
            block_size=BLOCK,
            num_kv_blocks=32,
            max_num_seqs=4,
            deterministic=True,
        )
    )


def decode(runner: ModelRunner, sequences: list[HandSequence], rows: int) -> Tensor:
    """Logits of the next token of each sequence, in a step of `rows` rows. Its keys are written again, the same."""
    model = runner._model
    assert model is not None
    ids, positions = torch.zeros(rows, dtype=torch.int64), torch.zeros(rows, dtype=torch.int64)
    slots = torch.full((rows,), -1, dtype=torch.int64)
    lengths, tables = torch.zeros(rows, dtype=torch.int32), torch.zeros(rows, 8, dtype=torch.int32)
    for row, sequence in enumerate(sequences):
        last = len(PROMPTS[row]) - 1
        ids[row], positions[row], lengths[row] = PROMPTS[row][last], last, last + 1
        slots[row] = sequence.block_table[last // BLOCK] * BLOCK + last % BLOCK
        tables[row, : len(sequence.block_table)] = torch.tensor(sequence.block_table, dtype=torch.int32)
    shape = model.config
    starts = torch.arange(rows + 1, dtype=torch.int32)
    with torch.inference_mode():
        plan = runner._ops.plan_attention(
            starts, lengths, tables, BLOCK, shape.num_heads, shape.num_kv_heads, shape.head_dim
        )
        return model.logits(model.last_norm(model.forward(ForwardBatch(ids, positions, slots, plan))))


def test_padding_leaves_the_real_rows_as_they_are_and_writes_nothing(runner: ModelRunner) -> None:
    sequences = [HandSequence(list(prompt)) for prompt in PROMPTS]
    HandDriver(runner, sequences).step()
    expected = decode(runner, sequences, 3)
    before = [(cache.key.clone(), cache.value.clone()) for cache in runner._caches]
    for rows in (4, 8, 16):
        padded = decode(runner, sequences, rows)
        torch.testing.assert_close(padded[:3], expected, rtol=1e-5, atol=1e-5)
        if runner._config.kernel_backend == "triton":  # the products of PyTorch depend on the number of rows
            assert padded[:3].equal(expected)
        assert padded.isfinite().all()
    for cache, (key, value) in zip(runner._caches, before, strict=True):
        assert cache.key.view(torch.int32).equal(key.view(torch.int32))
        assert cache.value.view(torch.int32).equal(value.view(torch.int32))
