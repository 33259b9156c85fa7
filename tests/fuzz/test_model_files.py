"""Damaged and hostile model files: each loads or is refused by a typed error; none hangs or exhausts memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save

from engine.errors import EngineError
from engine.weights.loader import open_checkpoint
from engine.weights.untrusted import model_files
from tests.fakes.tiny_model import byte_tokenizer, write_tiny_model
from tests.fuzz.conftest import Budget

SMALL: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same tiny Llama as a directory and as a GGUF file."""
    root = tmp_path_factory.mktemp("fuzz")
    config = write_tiny_model(root / "model", **SMALL).config
    settings = root / "model" / "tokenizer_config.json"
    kept = {key: value for key, value in json.loads(settings.read_text()).items() if key != "chat_template"}
    settings.write_text(json.dumps(kept))  # templates have a test of their own; each would start a process here
    writer = gguf.GGUFWriter(str(root / "model.gguf"), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_eos_token_id(2)
    words = sorted(byte_tokenizer().get_vocab().items(), key=lambda item: item[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([word for word, _ in words] + [f"<unused{i}>" for i in range(5)])
    writer.add_token_types([3, 3, 3] + [1] * (len(words) + 2))
    writer.add_token_merges(["t h", "th e", "Ġ the", "e s"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in load_file(root / "model" / "model.safetensors").items():
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), np.ascontiguousarray(tensor.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return root


@pytest.mark.parametrize("kind", ["gguf", "directory"])
def test_a_damaged_model_loads_or_is_refused_by_a_typed_error(kind: str, folder: Path, budget: Budget) -> None:
    arguments = [kind, str(folder), str(budget.first_seed), str(budget.count(250)), str(budget.seconds)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.model_files", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (
        f"the process ended with {done.returncode} after seed {budget.first_seed}: {done.stderr}"
    )
    report = json.loads(done.stdout.splitlines()[-1])
    sys.stdout.write(f"fuzz {kind}: {json.dumps(report)}\n")
    assert report["uncaught"] == []
    assert report["outcomes"].get("WeightsMismatch", 0) > 0


def test_the_undamaged_model_loads(folder: Path) -> None:
    for path in (folder / "model", folder / "model.gguf"):
        assert open_checkpoint(path).take("model.norm.weight", (16,), torch.float32).shape == (16,)


def test_every_file_of_the_corpus_is_refused_by_a_typed_error(corpus: Path, tmp_path: Path) -> None:
    files = sorted((corpus / "gguf").glob("*.hex"))
    assert len(files) >= 8
    for file in files:
        target = tmp_path / f"{file.stem}.gguf"
        target.write_bytes(bytes.fromhex(file.read_text()))
        with pytest.raises(EngineError):
            open_checkpoint(target)


CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 10,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "eos_token_id": 2,
}
TENSOR = "model.norm.weight"


def read_all(directory: Path) -> None:
    """Take the tensor as a model does, and require that there is no other."""
    checkpoint = open_checkpoint(directory)
    with model_files(directory.name):
        checkpoint.take(TENSOR, (16,), torch.float32)
        checkpoint.finish()


def directory_with(tmp_path: Path, weights: bytes, index: bytes | None = None) -> Path:
    """A model directory, and beside it a file that no index may name."""
    directory = tmp_path / "model"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    (directory / "model.safetensors").write_bytes(weights)
    (tmp_path / "model.safetensors").write_bytes(weights)
    if index is not None:
        (directory / "model.safetensors.index.json").write_bytes(index)
    return directory


def test_the_directory_that_the_corpus_damages_loads(tmp_path: Path) -> None:
    weights = save({TENSOR: torch.ones(16)})
    read_all(directory_with(tmp_path / "one", weights))
    index = json.dumps({"weight_map": {TENSOR: "model.safetensors"}}).encode()
    read_all(directory_with(tmp_path / "sharded", weights, index))


def test_every_safetensors_file_of_the_corpus_is_refused_by_a_typed_error(corpus: Path, tmp_path: Path) -> None:
    files = sorted((corpus / "safetensors").glob("*.hex"))
    assert len(files) >= 30
    for file in files:
        with pytest.raises(EngineError) as refused:
            read_all(directory_with(tmp_path / file.stem, bytes.fromhex(file.read_text())))
        assert len(str(refused.value)) < 500, file.stem


def test_every_index_of_the_corpus_is_refused_by_a_typed_error(corpus: Path, tmp_path: Path) -> None:
    files = sorted((corpus / "safetensors" / "index").glob("*.json"))
    assert len(files) >= 10
    weights = save({TENSOR: torch.ones(16)})
    for file in files:
        with pytest.raises(EngineError) as refused:
            read_all(directory_with(tmp_path / file.stem, weights, file.read_bytes()))
        assert len(str(refused.value)) < 500, file.stem
