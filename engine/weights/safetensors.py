"""A model directory (config.json and safetensors, whole or in shards) as a checkpoint.

Owns finding the shards and reading single tensors from them. Knows no model code.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from engine.errors import UnsupportedModel, WeightsMismatch
from engine.weights.finite import require_finite
from engine.weights.formats.format import CodedFormat
from engine.weights.quantized import format_of, refuse_codes

_INDEX = "model.safetensors.index.json"


class SafetensorsWeights:
    """Tensors of one directory by name. Files stay mapped while this object lives."""

    def __init__(self, directory: Path) -> None:
        self.config: Mapping[str, Any] = _read_config(directory)
        self.format: CodedFormat | None = format_of(self.config)
        self.files: tuple[Path, ...] = tuple(sorted(_shards(directory)))
        shards: list[Any] = [safe_open(str(file), framework="pt") for file in self.files]
        self._home = {name: shard for shard in shards for name in shard.keys()}  # noqa: SIM118  (not a mapping)
        self._sizes = {name: _nbytes(shard, name) for name, shard in self._home.items()}

    def names(self) -> Iterable[str]:
        return self._home

    def nbytes(self, name: str) -> int:
        return self._sizes[name]

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """Raises WeightsMismatch for numbers that are not finite."""
        refuse_codes(name, self._home[name].get_slice(name).get_dtype())
        tensor: Tensor = self._home[name].get_tensor(name).to(dtype)
        require_finite(name, tensor)
        return tensor

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._home[name].get_slice(name).get_shape())

    def raw(self, name: str) -> Tensor:
        """The tensor in its stored dtype: codes, scales, indices. Raises WeightsMismatch for NaN and infinity."""
        tensor: Tensor = self._home[name].get_tensor(name)
        if tensor.is_floating_point() and tensor.itemsize > 1:
            require_finite(name, tensor)
        return tensor

    def __contains__(self, name: str) -> bool:
        return name in self._home


def _read_config(directory: Path) -> Mapping[str, Any]:
    path = directory / "config.json"
    if not path.is_file():
        if (directory / "adapter_config.json").is_file():
            raise UnsupportedModel(
                f"{directory.name} holds a LoRA adapter, not a whole model", hint="merge it into its base model first"
            )
        raise WeightsMismatch(f"{directory.name} has no config.json", hint="give a model directory or a .gguf file")
    config: dict[str, Any] = _read_object(path)
    generation = directory / "generation_config.json"
    if generation.is_file():
        # Chat models name their end-of-turn tokens here, and only here.
        eos = _read_object(generation).get("eos_token_id")
        if eos is not None:
            config["eos_token_id"] = eos
    if not config.get("quantization_config"):
        config |= _separate_quantization(directory)
    return config


def _separate_quantization(directory: Path) -> Mapping[str, Any]:
    """Older exporters name the quantization in a file of its own."""
    for name, method in (("quantize_config.json", "gptq"), ("quant_config.json", "awq")):
        path = directory / name
        if path.is_file():
            return {"quantization_config": {"quant_method": method} | _read_object(path)}
    return {}


def _read_object(path: Path) -> dict[str, Any]:
    """Raises WeightsMismatch when the file holds no JSON object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise WeightsMismatch(f"{path.name} is no JSON document", hint="fetch the file again") from error
    if not isinstance(found, dict):
        raise WeightsMismatch(f"{path.name} holds no JSON object", hint="fetch the file again")
    return found


def _shards(directory: Path) -> set[Path]:
    index = directory / _INDEX
    if not index.is_file():
        found = set(directory.glob("*.safetensors"))
        if not found:
            raise WeightsMismatch(f"{directory.name} has no .safetensors file")
        return found
    names = {str(name) for name in _read_object(index)["weight_map"].values()}
    outside = sorted(name for name in names if Path(name).name != name)
    if outside:
        raise WeightsMismatch(f"the index names a file outside of the model's folder: {outside[0][:80]!r}")
    named = {directory / name for name in names}
    absent = sorted(path.name for path in named if not path.is_file())
    if absent:
        raise WeightsMismatch(f"shards named by the index are missing: {', '.join(absent)}", hint="fetch them again")
    return named


def _nbytes(shard: Any, name: str) -> int:
    part = shard.get_slice(name)
    bits = {"F64": 64, "I64": 64, "F32": 32, "I32": 32, "U32": 32, "BF16": 16, "F16": 16, "I16": 16}.get(
        part.get_dtype(), 8
    )
    count = 1
    for size in part.get_shape():
        count *= size
    return int(count * bits // 8)
