"""GGUF files as checkpoints: a Hugging Face model written as llama.cpp writes it must come back the same.

The writer here takes tensor names from the `gguf` package and repeats what llama.cpp's converter does to weights.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from engine.errors import UnsupportedModel, WeightsMismatch
from engine.weights.gguf_file import read_gguf
from engine.weights.loader import open_checkpoint
from kernels.gguf_formats import BY_ID, UNREAD
from kernels.reference.dequantize import dequantize

BASE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 32}
ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("Llama", "llama", {"rms_norm_eps": 1e-5}),
    "mixtral": ("Mixtral", "llama", {"num_local_experts": 3, "num_experts_per_tok": 2}),
    "qwen2": ("Qwen2", "qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", "qwen3", {"head_dim": 32}),
    "qwen3moe": (
        "Qwen3Moe",
        "qwen3moe",
        {
            "head_dim": 16,
            "num_experts": 3,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        },
    ),
    "phi3": ("Phi3", "phi3", {}),
    "gemma3": (
        "Gemma3",
        "gemma3",
        {"head_dim": 16, "sliding_window": 8, "num_hidden_layers": 7, "query_pre_attn_scalar": 16},
    ),
    # 62 layers are Gemma 3 27B, whose attention is scaled by (hidden / heads)^-0.5 instead of head_dim^-0.5.
    "gemma3 27B": (
        "Gemma3",
        "gemma3",
        {"head_dim": 8, "sliding_window": 8, "num_hidden_layers": 62, "query_pre_attn_scalar": 16},
    ),
    "qwen2 with yarn": ("Qwen2", "qwen2", {"rope_parameters": YARN}),
    "qwen2 with all of yarn's numbers": (
        "Qwen2",
        "qwen2",
        {"rope_parameters": {**YARN, "attention_factor": 1.25, "beta_fast": 16.0, "beta_slow": 2.0}},
    ),
}


class Pair:
    """The same model as a directory and as a GGUF file."""

    def __init__(self, name: str, folder: Path) -> None:
        class_name, self.arch, extra = ARCHITECTURES[name]
        config_name = f"{class_name}TextConfig" if class_name == "Gemma3" else f"{class_name}Config"
        torch.manual_seed(5)
        model = getattr(transformers, f"{class_name}ForCausalLM")(getattr(transformers, config_name)(**BASE | extra))
        for parameter in model.parameters():
            parameter.data.normal_()
        self.directory, self.file = folder / "hf", folder / f"{name}.gguf"
        model.save_pretrained(self.directory)
        tensors = load_file(self.directory / "model.safetensors")
        write_gguf(self.file, self.arch, model.config, tensors)
        self.tensors = tensors


def as_llama_cpp(arch: str, config: Any, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What llama.cpp's converter does to weights: permute, add one, stack experts."""
    out: dict[str, torch.Tensor] = {}
    stacks: dict[str, dict[int, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        expert = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)\.weight", name)
        if expert:
            stacks.setdefault(f"{expert[1]}.{expert[3]}.weight", {})[int(expert[2])] = tensor
        elif arch == "llama" and "q_proj" in name:
            out[name] = permuted(tensor, config.num_attention_heads)
        elif arch == "llama" and "k_proj" in name:
            out[name] = permuted(tensor, config.num_key_value_heads)
        else:
            out[name] = tensor + 1 if arch == "gemma3" and "norm" in name else tensor
    return out | {name: torch.stack([parts[i] for i in sorted(parts)]) for name, parts in stacks.items()}


def permuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp's `LlamaModel.permute`."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path, arch: str, config: Any, tensors: dict[str, torch.Tensor]) -> None:
    writer = gguf.GGUFWriter(str(path), arch)
    rope = config.rope_parameters
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    writer.add_eos_token_id(2)
    if rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for key, add in {
            "attention_factor": writer.add_rope_scaling_yarn_attn_factor,
            "beta_fast": writer.add_rope_scaling_yarn_beta_fast,
            "beta_slow": writer.add_rope_scaling_yarn_beta_slow,
        }.items():
            if rope.get(key) is not None:
                add(rope[key])
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if getattr(config, "num_experts_per_tok", None):
        writer.add_expert_count(3)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if getattr(config, "moe_intermediate_size", None):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    kind = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == arch)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    for name, tensor in as_llama_cpp(arch, config, tensors).items():
        encoding = gguf.GGMLQuantizationType.Q8_0 if "down_proj" in name and tensor.dim() == 2 else None
        data = tensor.contiguous().numpy()
        data = data if encoding is None else gguf.quants.quantize(data, encoding)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), data, raw_dtype=encoding)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module", params=list(ARCHITECTURES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(request.param, tmp_path_factory.mktemp("gguf"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair("llama", tmp_path_factory.mktemp("llama"))


def test_tensors_come_back_under_their_hugging_face_names(pair: Pair) -> None:
    checkpoint = open_checkpoint(pair.file)
    for name, expected in pair.tensors.items():
        ours = checkpoint.take(name, tuple(expected.shape), torch.float32)
        torch.testing.assert_close(ours, expected, atol=0.02 if "down_proj" in name else 1e-6, rtol=0)
    checkpoint.finish()


def test_the_configuration_equals_the_directory(pair: Pair) -> None:
    ours, theirs = open_checkpoint(pair.file).config, open_checkpoint(pair.directory).config
    different = {
        field.name
        for field in dataclasses.fields(ours)
        if getattr(ours, field.name) != getattr(theirs, field.name)
        and not (field.name == "norm_eps" and abs(ours.norm_eps - theirs.norm_eps) < 1e-9)
    }
    assert different <= {"bos_token_id"}


def test_codes_are_the_same_weights_undecoded(llama: Pair) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    codes = open_checkpoint(llama.file).take_codes(name, (64, 96))
    dense = open_checkpoint(llama.file).take(name, (64, 96), torch.float32)
    assert codes.type == "Q8_0"
    assert torch.equal(dequantize(codes), dense)


def test_codes_of_permuted_rows_are_put_in_order(llama: Pair) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    codes = open_checkpoint(llama.file).take_codes(name, (64, 64))
    assert torch.equal(dequantize(codes), llama.tensors[name])


def test_progress_ends_at_the_whole_file(llama: Pair) -> None:
    checkpoint = open_checkpoint(llama.file)
    seen: list[tuple[int, int]] = []
    checkpoint.on_progress = lambda done, total: seen.append((done, total))
    for name, tensor in llama.tensors.items():
        checkpoint.take(name, tuple(tensor.shape), torch.float32)
    assert seen[-1][0] == seen[-1][1]
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


def test_the_hash_is_the_files(llama: Pair) -> None:
    assert open_checkpoint(llama.file).sha256() == hashlib.sha256(llama.file.read_bytes()).hexdigest()


def test_metadata_equals_the_reference_reader(llama: Pair) -> None:
    theirs = gguf.GGUFReader(str(llama.file))
    expected = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert read_gguf(llama.file).metadata == expected


def test_a_file_cut_short_is_refused(llama: Pair, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(llama.file.read_bytes()[:-1000])
    with pytest.raises(WeightsMismatch, match="cut short"):
        open_checkpoint(cut)


def test_a_file_cut_within_its_header_is_refused(llama: Pair, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(llama.file.read_bytes()[:100])
    with pytest.raises(WeightsMismatch, match="damaged"):
        open_checkpoint(cut)


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(WeightsMismatch, match="not a GGUF file"):
        open_checkpoint(other)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(WeightsMismatch, match=r"empty\.gguf is empty"):
        open_checkpoint(tmp_path / "empty.gguf")


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "su", "nonsense"])
def test_a_rope_scaling_that_is_not_computed_is_refused_by_name(kind: str, llama: Pair, tmp_path: Path) -> None:
    reader = gguf.GGUFReader(str(llama.file))
    writer = gguf.GGUFWriter(str(tmp_path / "scaled.gguf"), "llama")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            writer.add_key_value(key, field.contents(), field.types[0])
    writer.add_string("llama.rope.scaling.type", kind)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match=f"RoPE scaling '{kind}'"):
        open_checkpoint(tmp_path / "scaled.gguf")


def test_an_unknown_architecture_lists_the_supported_ones(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(str(tmp_path / "bloom.gguf"), "bloom")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel) as caught:
        open_checkpoint(tmp_path / "bloom.gguf")
    assert "qwen3moe" in str(caught.value.hint)


def test_a_path_that_is_not_there_is_named_without_its_folders(tmp_path: Path) -> None:
    with pytest.raises(WeightsMismatch, match=r"no model at 'absent\.gguf'"):
        open_checkpoint(tmp_path / "absent.gguf")


def test_an_encoding_that_is_not_read_is_named_as_ggml_names_it() -> None:
    known = {kind.value: kind.name for kind in gguf.GGMLQuantizationType}
    read = set(BY_ID)
    assert {kind: name for kind, name in UNREAD.items() if known.get(kind) != name} == {}
    assert not read & set(UNREAD)
    assert {"IQ2_XS", "IQ3_S", "MXFP4"} <= set(UNREAD.values())


def test_a_file_in_an_encoding_that_is_not_read_is_refused_by_its_name(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor(
        "token_embd.weight",
        np.zeros((1, 17), dtype=np.uint8),
        raw_dtype=gguf.GGMLQuantizationType.MXFP4,
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match="MXFP4"):
        read_gguf(tmp_path / "model.gguf")
