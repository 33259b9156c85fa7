"""Quantized checkpoints mean to us what they mean to readers that others wrote.

`python -m benchmarks.quantized_readers` compares with the readers themselves; here are the hashes of what they gave.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.weights.loader import open_checkpoint
from kernels.reference.dequantize import dequantize
from tests.fixtures.quantized import GOLDEN, LAYOUTS, Geometry, dense_sha256, write_layout, write_seeded

READ_BY_OTHERS = json.loads(GOLDEN.read_text(encoding="utf-8"))
NOBODY = {
    "gptq-v1-asym": "GPTQModel borrows where AutoGPTQ wrapped",
    "ct-w4a16-act": "removed from compressed-tensors",
    "fp8-static": "vLLM needs a GPU for it",
}
"""Layouts that no reader on a CPU reads as they are meant: compared with their twins alone."""


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_seeded(tmp_path_factory.mktemp("seeded") / "seeded")


def dense_weights(folder: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    checkpoint = open_checkpoint(folder)
    twin = load_file(folder.with_name(f"{folder.name}-dense") / "model.safetensors")
    dense = {}
    for name, tensor in twin.items():
        if name.endswith("_proj.weight"):
            outputs, inputs = tensor.shape
            weight = checkpoint.take_weight(name, (outputs, inputs), dtype)
            assert not isinstance(weight, Tensor)
            dense[name.removesuffix(".weight")] = dequantize(weight).to(dtype)
            assert torch.equal(dense[name.removesuffix(".weight")], tensor)
    return dense


@pytest.mark.parametrize("name", LAYOUTS)
def test_weights_are_bit_for_bit_those_of_other_readers(name: str, seeded: Path, tmp_path: Path) -> None:
    folder = write_layout(LAYOUTS[name], seeded, tmp_path / name, Geometry())
    dense = dense_weights(folder, LAYOUTS[name].dtype)
    assert len(dense) == 14
    assert name in NOBODY or {dense_sha256(dense)} == set(READ_BY_OTHERS[name].values())


def test_every_layout_was_read_by_somebody_else_or_there_is_a_reason() -> None:
    assert LAYOUTS.keys() - READ_BY_OTHERS.keys() == NOBODY.keys()
