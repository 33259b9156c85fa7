"""One GGUF file as a checkpoint in Hugging Face terms: tensor names, weight order and configuration.

Owns what llama.cpp's converter changed and undoes it: renamed tensors, permuted q/k rows of the llama architecture,
Gemma norms with one added. Knows no model code. Source: convert_hf_to_gguf.py and gguf-py's tensor_mapping.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import UnsupportedModel, WeightsMismatch
from engine.weights.dequantize import dequantize
from engine.weights.finite import require_finite, require_finite_encoded
from engine.weights.gguf_file import GgufFile, TensorEntry, read_gguf
from kernels.contracts import QuantizedWeight

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
}
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_EXPERT_STACKS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_GEMMA3_27B_LAYERS = 62
"""The one Gemma 3 whose attention scale is not head_dim^-0.5. The file has no key for it: llama.cpp tells the model by
its number of layers, too (llama-model.cpp, LLM_ARCH_GEMMA3)."""
_YARN_KEYS = {
    "yarn_attn_factor": "attention_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
"""GGUF key behind `rope.scaling.` -> the name that Hugging Face gives the same number."""
_ROPE_TABLES = frozenset({"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})


class GgufWeights:
    """Dense tensors of one GGUF file by their Hugging Face names. Bytes are mapped, read when asked for."""

    def __init__(self, path: Path) -> None:
        self.file: GgufFile = read_gguf(path)
        self.architecture = str(self.file.metadata.get("general.architecture"))
        if self.architecture not in _ARCHITECTURES:
            raise UnsupportedModel(
                f"GGUF architecture {self.architecture!r} is not supported",
                hint=f"supported: {', '.join(sorted(_ARCHITECTURES))}",
            )
        self._bytes = np.asarray(np.memmap(path, dtype=np.uint8, mode="c"))
        self.config: Mapping[str, Any] = _hf_config(self.file, self.architecture)
        self._entries: dict[str, TensorEntry] = {}
        for entry in self.file.tensors.values():
            self._register(entry)

    def names(self) -> Iterable[str]:
        return self._entries

    def nbytes(self, name: str) -> int:
        """Bytes that reading `name` consumes of the file."""
        return self._entries[name].nbytes

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """Raises WeightsMismatch for numbers that are not finite, in the file or in `dtype`."""
        entry, raw = self._entries[name], self._raw(self._entries[name])
        require_finite_encoded(name, raw, entry.type)
        tensor = dequantize(raw, entry.type, entry.shape, dtype)
        if dtype == torch.float16:  # too narrow for what the others hold
            require_finite(name, tensor)
        return self._restore(name, tensor)

    def read_codes(self, name: str) -> QuantizedWeight:
        """The blocks of a matrix as they are in the file, rows in the model's order.

        Raises WeightsMismatch for numbers or scales that are not finite.
        """
        entry, raw = self._entries[name], self._raw(self._entries[name])
        require_finite_encoded(name, raw, entry.type)
        rows = torch.from_numpy(raw).view(entry.shape[0], -1)
        return QuantizedWeight(self._restore(name, rows).clone(), entry.type.name, entry.shape[1])

    def _raw(self, entry: TensorEntry) -> NDArray[np.uint8]:
        return self._bytes[entry.offset : entry.offset + entry.nbytes]

    def _register(self, entry: TensorEntry) -> None:
        if entry.name in _ROPE_TABLES:
            return
        stack = self._expert_stack(entry)
        if stack:
            self._register_experts(entry, *stack)
        else:
            self._entries[self._hf_name(entry.name)] = entry

    def _hf_name(self, name: str) -> str:
        if name in _TOP:
            return _TOP[name]
        match = _LAYER_NAME.fullmatch(name)
        if match is None or match[2] not in _LAYER:
            raise UnsupportedModel(f"tensor {name} of architecture {self.architecture} is not known")
        part = _LAYER[match[2]]
        if self.architecture == "gemma3" and match[2] == "ffn_norm":
            part = "pre_feedforward_layernorm"
        if self.architecture == "phi3" and match[2] == "ffn_up":
            part = "mlp.gate_up_proj"
        if self.architecture == "llama" and match[2] == "ffn_gate_inp":
            part = "block_sparse_moe.gate"
        return f"model.layers.{match[1]}.{part}.{match[3]}"

    def _expert_stack(self, entry: TensorEntry) -> tuple[str, str] | None:
        match = _LAYER_NAME.fullmatch(entry.name)
        if match is None or match[2] not in _EXPERT_STACKS:
            return None
        return match[1], _EXPERT_STACKS[match[2]]

    def _register_experts(self, entry: TensorEntry, layer: str, part: str) -> None:
        count, block, kind = entry.shape[0], "mlp", part
        if self.architecture == "llama":
            block, kind = "block_sparse_moe", {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}[part]
        size = entry.nbytes // count
        for expert in range(count):
            name = f"model.layers.{layer}.{block}.experts.{expert}.{kind}.weight"
            self._entries[name] = TensorEntry(name, entry.shape[1:], entry.type, entry.offset + expert * size, size)

    def _restore(self, name: str, tensor: Tensor) -> Tensor:
        if self.architecture == "llama" and ".self_attn.q_proj." in name:
            return _unpermute(tensor, self.config["num_attention_heads"])
        if self.architecture == "llama" and ".self_attn.k_proj." in name:
            return _unpermute(tensor, self.config["num_key_value_heads"])
        if self.architecture == "gemma3" and "norm" in name:
            return tensor - 1.0
        return tensor


def _unpermute(rows: Tensor, num_heads: int) -> Tensor:
    """Rows in llama.cpp's order (pairs interleaved) back to two halves per head, as rotate-half expects."""
    paired = rows.view(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
    return paired.transpose(1, 2).reshape(rows.shape)


def _hf_config(file: GgufFile, architecture: str) -> dict[str, Any]:
    meta = file.metadata

    def get(key: str, default: Any = None) -> Any:
        return meta.get(f"{architecture}.{key}", default)

    heads, hidden = get("attention.head_count"), get("embedding_length")
    for key, value in (("attention.head_count", heads), ("embedding_length", hidden)):
        if not isinstance(value, int) or value <= 0:
            raise WeightsMismatch(f"the GGUF key {architecture}.{key} is missing or no positive number")
    if "token_embd.weight" not in file.tensors:
        raise WeightsMismatch("the GGUF file has no tensor token_embd.weight", hint="fetch the file again")
    config = {
        "architectures": [_architecture(meta, architecture)],
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": get("attention.key_length") or hidden // heads,
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon", 1e-6),
        "max_position_embeddings": get("context_length"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": architecture != "qwen2" and "blk.0.attn_q.bias" in file.tensors,
        "rope_theta": get("rope.freq_base", 10_000.0),
        "eos_token_id": meta.get("tokenizer.ggml.eos_token_id"),
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
    }
    rotary_dim = get("rope.dimension_count")
    if rotary_dim and rotary_dim != config["head_dim"]:
        config["partial_rotary_factor"] = rotary_dim / config["head_dim"]
    config.update(_rope_scaling(file, architecture))
    if get("attention.sliding_window"):
        config["sliding_window"] = get("attention.sliding_window")
    if architecture == "gemma3":
        config |= {
            "rope_local_base_freq": get("rope.freq_base_swa", 10_000.0),
            "hidden_activation": "gelu_pytorch_tanh",
        }
        if get("block_count") == _GEMMA3_27B_LAYERS:
            config["query_pre_attn_scalar"] = hidden / heads
    if get("expert_count"):
        config |= {
            "num_experts": get("expert_count"),
            "num_experts_per_tok": get("expert_used_count"),
            "moe_intermediate_size": get("expert_feed_forward_length"),
            "norm_topk_prob": True,
        }
    return config


def _architecture(meta: Mapping[str, Any], architecture: str) -> str:
    if architecture == "llama" and meta.get("llama.expert_count"):
        return "MixtralForCausalLM"
    return _ARCHITECTURES[architecture]


def _rope_scaling(file: GgufFile, architecture: str) -> dict[str, Any]:
    meta = file.metadata
    kind = meta.get(f"{architecture}.rope.scaling.type")
    original = meta.get(f"{architecture}.rope.scaling.original_context_length")
    if "rope_freqs.weight" in file.tensors:
        return {"rope_scaling": {"rope_type": "factors", "factors": _read_floats(file, "rope_freqs.weight")}}
    if "rope_factors_long.weight" in file.tensors:
        scaling = {
            "rope_type": "longrope",
            "long_factor": _read_floats(file, "rope_factors_long.weight"),
            "short_factor": _read_floats(file, "rope_factors_short.weight"),
        }
        return {"rope_scaling": scaling, "original_max_position_embeddings": original}
    if kind in (None, "none"):
        return {}
    if kind not in ("linear", "yarn") or f"{architecture}.rope.scaling.yarn_log_multiplier" in meta:
        raise UnsupportedModel(
            f"GGUF RoPE scaling {str(kind)[:40]!r} of architecture {architecture} is not supported",
            hint="supported: none, linear, yarn (without a log multiplier), and tables of factors",
        )
    scaling = {"rope_type": kind, "factor": meta[f"{architecture}.rope.scaling.factor"]}
    if kind == "yarn":
        given = {name: meta.get(f"{architecture}.rope.scaling.{key}") for key, name in _YARN_KEYS.items()}
        scaling |= {name: value for name, value in given.items() if value is not None}
    return {"rope_scaling": scaling, "original_max_position_embeddings": original}


def _read_floats(file: GgufFile, name: str) -> list[float]:
    entry = file.tensors[name]
    numbers = np.fromfile(file.path, dtype=np.float32, count=entry.nbytes // 4, offset=entry.offset)
    require_finite(name, torch.from_numpy(numbers))
    return [float(number) for number in numbers]
