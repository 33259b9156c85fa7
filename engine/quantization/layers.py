"""Decoder layers quantized one after the other on calibration inputs that went through those before, as quantized."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.models.llama import LlamaModel
from engine.quantization.awq import best_scales
from engine.quantization.capture import Batch, Inputs
from engine.quantization.gptq import damping_for, rounded_by_hessian
from engine.quantization.rounding import Grid, nearest_integers
from engine.quantization.writers import Tensors
from kernels.contracts import DecoderLayer, IntWeight, Ops, PackedLinear
from kernels.reference.dequantize import dequantize

Write = Callable[[str, IntWeight], Tensors]


@dataclass(slots=True)
class Part:
    """One matrix of a layer as the checkpoint names it, without `.weight`."""

    name: str
    weight: Tensor
    bias: Tensor | None
    inputs: Inputs


@dataclass(slots=True)
class Parts:
    """All matrices of a layer, and its norms, which scales of channels are folded into."""

    layer: DecoderLayer
    q: Part
    k: Part
    v: Part
    o: Part
    gate: Part
    up: Part
    down: Part
    input_norm: Tensor
    post_attention_norm: Tensor

    def all(self) -> tuple[Part, ...]:
        return self.q, self.k, self.v, self.o, self.gate, self.up, self.down


def quantized_layers(
    model: LlamaModel, batch: Batch, grid: Grid, *, method: str, act_order: bool, write: Write
) -> Iterator[Tensors]:
    """The tensors of each layer, in order; `method` is `awq` or `gptq`. `batch` ends behind the last layer."""
    for index, layer in enumerate(model.layers):
        parts = split(layer, f"model.layers.{index}", batch)
        if method == "awq":
            scale_channels(parts, grid)
        coded: dict[str, IntWeight] = {}
        for part in parts.all():
            if method == "awq":
                coded[part.name] = nearest_integers(part.weight, grid)
            else:
                damping = damping_for(part.weight.shape[1], part.inputs.rows)
                coded[part.name] = rounded_by_hessian(
                    part.weight, part.inputs.hessian, grid, act_order=act_order, damping=damping
                )
        tensors: Tensors = {}
        for part in parts.all():
            tensors |= write(part.name, coded[part.name])
            if part.bias is not None:
                tensors[f"{part.name}.bias"] = part.bias
        prefix = f"model.layers.{index}"
        tensors[f"{prefix}.input_layernorm.weight"] = parts.input_norm
        tensors[f"{prefix}.post_attention_layernorm.weight"] = parts.post_attention_norm
        for name, norm in (("q_norm", layer.q_norm), ("k_norm", layer.k_norm)):
            if norm is not None:
                tensors[f"{prefix}.self_attn.{name}.weight"] = norm
        batch.hidden = batch.run(as_quantized(parts, coded, batch.ops))
        yield tensors


def split(layer: DecoderLayer, prefix: str, batch: Batch) -> Parts:
    qkv, o, gate_up, down = batch.capture(layer, [layer.qkv, layer.o, layer.gate_up, layer.down])
    heads, kv = layer.num_heads * layer.head_dim, layer.num_kv_heads * layer.head_dim
    attention = _cut(layer.qkv, [heads, kv, kv], [f"{prefix}.self_attn.{n}_proj" for n in "qkv"], qkv)
    half = layer.gate_up.out_features // 2
    gated = _cut(layer.gate_up, [half, half], [f"{prefix}.mlp.{n}_proj" for n in ("gate", "up")], gate_up)
    (out,) = _cut(layer.o, [layer.o.out_features], [f"{prefix}.self_attn.o_proj"], o)
    (last,) = _cut(layer.down, [layer.down.out_features], [f"{prefix}.mlp.down_proj"], down)
    (q, k, v), (gate, up) = attention, gated
    norms = layer.input_norm.float().clone(), layer.post_attention_norm.float().clone()
    return Parts(layer, q, k, v, out, gate, up, last, *norms)


def _cut(packed: PackedLinear, sizes: list[int], names: list[str], inputs: Inputs) -> list[Part]:
    weight: Tensor = packed.data
    biases = [None] * len(sizes) if packed.bias is None else list(torch.split(packed.bias.float(), sizes))
    rows = torch.split(weight.float(), sizes)
    return [Part(n, w.clone(), b, inputs) for n, w, b in zip(names, rows, biases, strict=True)]


def scale_channels(parts: Parts, grid: Grid) -> None:
    """In place: AWQ's scales of the inputs of each product, folded into what comes before it.

    The output projection is scaled only where each of its inputs comes from a row of v of its own.
    """
    scales = _scales([parts.down], grid)
    parts.up.weight /= scales.unsqueeze(1)
    _divide_bias(parts.up, scales)
    scales = _scales([parts.gate, parts.up], grid)
    parts.post_attention_norm /= scales
    if parts.layer.num_heads == parts.layer.num_kv_heads:
        scales = _scales([parts.o], grid)
        parts.v.weight /= scales.unsqueeze(1)
        _divide_bias(parts.v, scales)
    scales = _scales([parts.q, parts.k, parts.v], grid)
    parts.input_norm /= scales


def _scales(parts: list[Part], grid: Grid) -> Tensor:
    """Found for the products of one input, and multiplied into their columns."""
    inputs = parts[0].inputs
    scales = best_scales([part.weight for part in parts], inputs.hessian, inputs.mean_magnitudes(), grid)
    for part in parts:
        part.weight *= scales
    return scales


def _divide_bias(part: Part, scales: Tensor) -> None:
    if part.bias is not None:
        part.bias = part.bias / scales


def as_quantized(parts: Parts, coded: dict[str, IntWeight], ops: Ops) -> DecoderLayer:
    """The layer as it will be when the checkpoint is loaded, widened."""

    def packed(*of: Part) -> PackedLinear:
        biases = [part.bias for part in of if part.bias is not None]
        weight = torch.cat([dequantize(coded[part.name]) for part in of])
        return ops.pack_linear(weight, torch.cat(biases) if biases else None, torch.float32)

    return replace(
        parts.layer,
        input_norm=parts.input_norm,
        post_attention_norm=parts.post_attention_norm,
        qkv=packed(parts.q, parts.k, parts.v),
        o=packed(parts.o),
        gate_up=packed(parts.gate, parts.up),
        down=packed(parts.down),
    )
