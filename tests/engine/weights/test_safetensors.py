"""Model directories: shards, generation settings, strictness."""

from __future__ import annotations

import json
import re
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


@pytest.mark.parametrize(
    ("quantization", "named"),
    [
        ({"quant_method": "hqq", "bits": 4, "group_size": 128}, r"HQQ \(4 bit, groups of 128\)"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"quant_method": "made-up"}, "made-up"),
        ("text instead of an object", "unknown"),
    ],
)
def test_a_quantized_checkpoint_is_refused_by_the_name_of_its_format(
    directory: Path, quantization: object, named: str
) -> None:
    (directory / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": quantization}))
    with pytest.raises(UnsupportedModel, match=f"quantized with {named}") as caught:
        open_checkpoint(directory)
    assert "GGUF" in (caught.value.hint or "")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_codes_without_scales_are_no_weights(directory: Path, dtype: torch.dtype) -> None:
    save_file({"b": torch.ones(4).to(dtype)}, directory / "model-2.safetensors")
    with pytest.raises(UnsupportedModel, match="tensor b is stored as"):
        open_checkpoint(directory).take("b", (4,), torch.float32)


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/hosts", "a/../../b.safetensors", "folder/x.safetensors"]
)
def test_an_index_that_leaves_the_folder_of_the_model_is_refused_unopened(directory: Path, name: str) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": name}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightsMismatch, match="outside of the model's folder"):
        open_checkpoint(directory)


def test_a_lora_adapter_is_named_as_one(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(UnsupportedModel, match="LoRA adapter"):
        open_checkpoint(tmp_path)


def test_a_hub_id_is_shown_whole_and_answered_with_what_is_wanted() -> None:
    with pytest.raises(WeightsMismatch, match=re.escape("'Qwen/Qwen2.5-0.5B-Instruct'")) as caught:
        open_checkpoint("Qwen/Qwen2.5-0.5B-Instruct")
    assert "hub" in (caught.value.hint or "")


@pytest.mark.parametrize("content", [b"", b"junk", b"\xff" * 100, (1 << 60).to_bytes(8, "little") + b"{}"])
def test_a_damaged_shard_is_a_typed_error_that_names_the_model(directory: Path, content: bytes) -> None:
    (directory / "model-2.safetensors").write_bytes(content)
    with pytest.raises(WeightsMismatch, match=directory.name):
        open_checkpoint(directory)


def test_half_a_shard_is_a_typed_error(directory: Path) -> None:
    file = directory / "model-1.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(WeightsMismatch, match="damaged"):
        open_checkpoint(directory)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "model.safetensors.index.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'"text"', b"[" * 100_000])
def test_a_document_that_is_no_json_object_is_named(directory: Path, file: str, content: bytes) -> None:
    (directory / file).write_bytes(content)
    with pytest.raises(WeightsMismatch, match=file):
        open_checkpoint(directory)


@pytest.mark.parametrize("key", ["num_hidden_layers", "vocab_size", "hidden_size", "max_position_embeddings"])
@pytest.mark.parametrize("value", [0, -1, 10**12, "many", 1.5, True, [1]])
def test_a_size_that_cannot_be_meant_is_refused_before_anything_is_allocated(
    directory: Path, key: str, value: object
) -> None:
    (directory / "config.json").write_text(json.dumps(CONFIG | {key: value}))
    with pytest.raises(UnsupportedModel, match=key):
        open_checkpoint(directory)
