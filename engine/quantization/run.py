"""Quantizes a model directory or GGUF file into a new checkpoint: AWQ, GPTQ, FP8 or int8.

AWQ and GPTQ need a text to calibrate on and know decoders of the Llama family; FP8 and int8 round any model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import gcd
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.errors import InvalidInput, UnsupportedModel
from engine.models.llama import LlamaModel
from engine.models.registry import load_model
from engine.models.rope import rotary_tables
from engine.models.source import WeightSource
from engine.quantization.calibration import own_words
from engine.quantization.capture import Batch
from engine.quantization.checkpoint_writer import CheckpointWriter
from engine.quantization.layers import quantized_layers
from engine.quantization.request import METHODS, Progress, Quantized, QuantizeRequest
from engine.quantization.rounding import Grid, nearest_bytes, nearest_floats
from engine.quantization.writers import (
    Tensors,
    awq_config,
    awq_tensors,
    byte_tensors,
    float_tensors,
    fp8_config,
    gptq_config,
    gptq_tensors,
    int8_config,
)
from engine.text.tokenizer import ChatTokenizer
from engine.weights.loader import Checkpoint, open_checkpoint
from engine.weights.untrusted import model_files
from kernels import dispatch

CALIBRATED = ("awq", "gptq")
CALIBRATED_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
LINEAR_NAMES = ("_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight")
SMALLEST_GROUP = 16
FP8_TILE = (128, 128)
LEAST_TOKENS = 128
FLOAT16_MAX = 65504.0


def quantize(request: QuantizeRequest, progress: Progress) -> Quantized:
    """Write `request.out`, whole or not at all.

    Raises InvalidInput for settings that do not go together, UnsupportedModel for a model that the method does not
    know, and what loading raises.
    """
    _check(request)
    with model_files(Path(request.model).name):
        checkpoint = open_checkpoint(request.model)
    if checkpoint.format is not None:
        raise InvalidInput("model", Path(request.model).name, f"it is stored as {checkpoint.format.name} already")
    with CheckpointWriter(request.out) as writer, torch.inference_mode():
        if request.to in CALIBRATED:
            config, tokens = _calibrated(request, checkpoint, writer, progress)
        else:
            config, tokens = _rounded(request, checkpoint, writer, progress), 0
        dtype = "bfloat16" if request.to in ("fp8", "int8") else "float16"
        writer.finish(checkpoint, config, dtype)
    before = sum(file.stat().st_size for file in checkpoint.files)
    return Quantized(config, before, writer.total_bytes, tokens)


def _check(request: QuantizeRequest) -> None:
    if request.to not in METHODS:
        raise InvalidInput("to", request.to, f"must be one of {', '.join(METHODS)}")
    allowed = {"awq": (4,), "gptq": (2, 3, 4, 8)}.get(request.to)
    if allowed is not None and request.bits not in allowed:
        raise InvalidInput("bits", request.bits, f"{request.to} has {' or '.join(map(str, allowed))} bits")
    if request.group < SMALLEST_GROUP:
        raise InvalidInput("group_size", request.group, f"must be at least {SMALLEST_GROUP}")
    if request.windows < 1 or request.window_tokens < 2:
        raise InvalidInput("calibration", request.windows, "at least one window of two tokens")


def _calibrated(
    request: QuantizeRequest, checkpoint: Checkpoint, writer: CheckpointWriter, progress: Progress
) -> tuple[dict[str, Any], int]:
    architecture = checkpoint.config.architecture
    if architecture not in CALIBRATED_ARCHITECTURES:
        raise UnsupportedModel(
            f"{request.to} of {architecture[:80]} is not offered", hint="use `--to fp8` or `--to int8`"
        )
    progress("reading the model", 0, 1)
    ops = dispatch.load("reference", "cpu")
    names = _dense_names(checkpoint)
    dense = {name: checkpoint.read(name, torch.float32) for name in names}
    model = load_model(WeightSource(checkpoint, ops, torch.device("cpu"), torch.float32))
    assert isinstance(model, LlamaModel)
    grid = Grid(request.bits, _group(request.group, model), request.symmetric and request.to == "gptq")
    batch = _batch(request, checkpoint, model, progress)
    count = len(model.layers)
    write = awq_tensors if request.to == "awq" else gptq_tensors
    progress("layers", 0, count)
    layers = quantized_layers(model, batch, grid, method=request.to, act_order=request.act_order, write=write)
    for done, tensors in enumerate(layers, 1):
        writer.add(_in_half(tensors))
        progress("layers", done, count)
    writer.add(_in_half(dense))
    if request.to == "awq":
        return awq_config(grid.group), int(batch.hidden.shape[0])
    config = gptq_config(request.bits, grid.group, symmetric=grid.symmetric, act_order=request.act_order)
    return config, int(batch.hidden.shape[0])


def _dense_names(checkpoint: Checkpoint) -> list[str]:
    """What is outside of the layers: the embedding, the last norm and the head."""
    tied = checkpoint.config.tie_word_embeddings
    return [
        name
        for name in checkpoint.names()
        if not name.startswith("model.layers.") and not (tied and name == "lm_head.weight")
    ]


def _group(asked: int, model: LlamaModel) -> int:
    """The largest group up to `asked` that divides every input width, in whole eights."""
    widths = {w.in_features for layer in model.layers for w in (layer.qkv, layer.o, layer.gate_up, layer.down)}
    group = gcd(asked, *widths)
    if group < SMALLEST_GROUP:
        raise UnsupportedModel(
            f"the widths {sorted(widths)} have no common group of {SMALLEST_GROUP} inputs", hint="use `--to int8`"
        )
    return group


def _batch(request: QuantizeRequest, checkpoint: Checkpoint, model: LlamaModel, progress: Progress) -> Batch:
    tokenizer = ChatTokenizer.from_checkpoint(checkpoint)
    if not request.calibration:
        progress("writing a text to calibrate on", 0, 1)
    ids = tokenizer.encode(request.calibration or own_words(request))
    if len(ids) < LEAST_TOKENS:
        raise InvalidInput(
            "calibration", len(ids), f"the text has that many tokens, at least {LEAST_TOKENS} are needed"
        )
    length = min(request.window_tokens, model.config.max_position_embeddings, len(ids))
    windows = min(request.windows, len(ids) // length)
    chosen = torch.tensor(ids[: windows * length])
    cos, sin = rotary_tables(model.config.rope, model.config.max_position_embeddings, length, torch.device("cpu"))
    return Batch(dispatch.load("reference", "cpu"), model.embed(chosen).float(), length, cos, sin)


def _in_half(tensors: Mapping[str, Tensor]) -> Tensors:
    """Plain float32 tensors in float16, or in bfloat16 where numbers are too large for it; codes and scales stay."""
    halved: Tensors = {}
    for name, tensor in tensors.items():
        if tensor.dtype is torch.float32:
            fits = float(tensor.abs().max()) <= FLOAT16_MAX
            halved[name] = tensor.to(torch.float16 if fits else torch.bfloat16)
        else:
            halved[name] = tensor
    return halved


def _rounded(
    request: QuantizeRequest, checkpoint: Checkpoint, writer: CheckpointWriter, progress: Progress
) -> dict[str, Any]:
    names = checkpoint.names()
    for done, (_, tensors) in enumerate(_each(checkpoint, names, request.to), 1):
        writer.add(tensors)
        progress("tensors", done, len(names))
    return fp8_config(FP8_TILE) if request.to == "fp8" else int8_config()


def _each(checkpoint: Checkpoint, names: list[str], to: str) -> Iterator[tuple[str, Tensors]]:
    tied = checkpoint.config.tie_word_embeddings
    for name in names:
        if tied and name == "lm_head.weight":
            yield name, {}
            continue
        tensor = checkpoint.read(name, torch.bfloat16)
        module = name.removesuffix(".weight")
        if tensor.dim() != 2 or not name.endswith(LINEAR_NAMES):
            yield name, {name: tensor}
        elif to == "fp8":
            yield name, float_tensors(module, nearest_floats(tensor, FP8_TILE))
        else:
            yield name, byte_tensors(module, nearest_bytes(tensor))
