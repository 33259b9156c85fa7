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
from safetensors.torch import load_file

from engine.errors import EngineError
from engine.weights.loader import open_checkpoint
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
