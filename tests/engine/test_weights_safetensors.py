"""Model directories: shards, generation settings, strictness."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine.errors import UnsupportedModel, WeightsMismatch
from engine.weights.loader import open_checkpoint

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 10,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "eos_token_id": 2,
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    parts = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
    for number, (name, tensor) in enumerate(parts.items(), start=1):
        save_file({name: tensor}, tmp_path / f"model-{number}.safetensors")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def test_tensors_are_found_in_all_shards_and_converted(directory: Path) -> None:
    checkpoint = open_checkpoint(directory)
    assert torch.equal(checkpoint.take("a", (2, 3), torch.float32), torch.arange(6.0).view(2, 3))
    assert checkpoint.take("b", (4,), torch.float32).dtype == torch.float32
    checkpoint.finish()


def test_a_missing_shard_is_named(directory: Path) -> None:
    (directory / "model-2.safetensors").unlink()
    with pytest.raises(WeightsMismatch, match=r"model-2\.safetensors"):
        open_checkpoint(directory)


def test_a_missing_tensor_is_named(directory: Path) -> None:
    with pytest.raises(WeightsMismatch, match="no tensor c"):
        open_checkpoint(directory).take("c", (1,), torch.float32)


def test_another_shape_is_an_error(directory: Path) -> None:
    with pytest.raises(WeightsMismatch, match=r"\(2, 3\), expected \(3, 2\)"):
        open_checkpoint(directory).take("a", (3, 2), torch.float32)


def test_an_unused_tensor_is_an_error(directory: Path) -> None:
    checkpoint = open_checkpoint(directory)
    checkpoint.take("a", (2, 3), torch.float32)
    with pytest.raises(WeightsMismatch, match="among them b"):
        checkpoint.finish()


def test_end_of_turn_tokens_come_from_the_generation_settings(directory: Path) -> None:
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert open_checkpoint(directory).config.eos_token_ids == (7, 9)


def test_codes_are_refused_where_there_are_none(directory: Path) -> None:
    with pytest.raises(UnsupportedModel, match="no GGUF codes"):
        open_checkpoint(directory).take_codes("a", (2, 3))


def test_a_configuration_without_a_needed_number_is_refused(directory: Path) -> None:
    (directory / "config.json").write_text(json.dumps({k: v for k, v in CONFIG.items() if k != "hidden_size"}))
    with pytest.raises(UnsupportedModel, match="hidden_size"):
        open_checkpoint(directory)


def test_the_hash_changes_with_a_weight(directory: Path) -> None:
    before = open_checkpoint(directory).sha256()
    save_file({"b": torch.zeros(4, dtype=torch.bfloat16)}, directory / "model-2.safetensors")
    assert open_checkpoint(directory).sha256() != before
