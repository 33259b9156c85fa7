"""A model whose content hash is pinned loads from those bytes alone, at the start and when it wakes."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from engine.errors import WeightsMismatch
from engine.execution.runner import ModelRunner, load_model
from engine.weights.loader import open_checkpoint
from tests.fakes.tiny_model import write_tiny_model


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_tiny_model(tmp_path)
    return tmp_path


def load(directory: Path, sha256: str | None) -> str:
    config = EngineConfig(str(directory), device="cpu", kv_cache_bytes=1 << 20, model_sha256=sha256)
    return load_model(config, lambda stage, percent: None).model_sha256


def change_one_weight(directory: Path) -> None:
    """Another model of the same size, all of whose numbers are finite."""
    file = directory / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"] = tensors["model.norm.weight"] + 1.0
    save_file(tensors, file)


@pytest.mark.parametrize("written", [str.lower, str.upper], ids=["lower case", "upper case"])
def test_the_pinned_bytes_load(directory: Path, written: type[str]) -> None:
    pinned = open_checkpoint(directory).sha256()
    assert load(directory, written(pinned)) == pinned


def test_other_bytes_are_refused_with_both_hashes(directory: Path) -> None:
    pinned = open_checkpoint(directory).sha256()
    change_one_weight(directory)
    found = open_checkpoint(directory).sha256()
    assert load(directory, None) == found
    with pytest.raises(WeightsMismatch) as refused:
        load(directory, pinned)
    assert refused.value.code == "weights_mismatch"
    assert found in str(refused.value)
    assert pinned in str(refused.value)
    assert "fetch" in str(refused.value.hint)


def test_an_engine_does_not_wake_with_other_weights_than_it_slept_with(directory: Path) -> None:
    config = EngineConfig(str(directory), device="cpu", kv_cache_bytes=1 << 20)
    runner = load_model(config, lambda stage, percent: None).runner
    assert isinstance(runner, ModelRunner)
    runner.release_weights()
    change_one_weight(directory)
    with pytest.raises(WeightsMismatch, match="SHA-256"):
        runner.restore_weights()
