"""The size of a model's parameters in bytes, against which memory figures are compared. Reads headers, no weights."""

from __future__ import annotations

from math import prod
from pathlib import Path

import torch
from safetensors import safe_open

from engine.weights.gguf_file import read_gguf

BYTES_PER_PARAMETER = {"int8": 1.0, "int4": 0.5}


def count_parameters(files: tuple[Path, ...]) -> int:
    """Of a GGUF file or of safetensors shards; a table that is tied to the head is stored, and counted, once."""
    count = 0
    for file in files:
        if file.suffix == ".gguf":
            count += sum(prod(entry.shape) for entry in read_gguf(file).tensors.values())
        else:
            with safe_open(file, framework="pt") as shard:
                count += sum(prod(shard.get_slice(name).get_shape()) for name in shard.keys())  # noqa: SIM118
    return count


def model_bytes(parameters: int, file_bytes: int, quantization: str | None, dtype: torch.dtype) -> int:
    """Every parameter once in the precision asked for; no scales, no padding, no second copy of the embedding table.

    `gguf` keeps the file's own codes, so its size is the file's.
    """
    if quantization == "gguf":
        return file_bytes
    return int(parameters * BYTES_PER_PARAMETER.get(quantization or "", dtype.itemsize))
