"""Linear layers. Quantized weights are kept as codes and scales, and widened at each call: readable, not fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.contracts import (
    CodedWeight,
    FloatWeight,
    IntWeight,
    KernelError,
    PackedLinear,
    QuantizedWeight,
    Weight,
    as_weights,
    check_quantization,
)
from kernels.reference.dequantize import dequantize
from kernels.reference.quantize_rows import INT8_MAX, quantize_rows

GROUP = 32


@dataclass(slots=True)
class Int8Weight:
    """`weight ~ codes * scale`: int8 `[out, in]`, float32 `[out, 1]`."""

    codes: Tensor
    scale: Tensor


def pack_linear(
    weight: Weight | Sequence[Weight],
    bias: Tensor | None = None,
    dtype: torch.dtype | None = None,
    quantization: str | None = None,
    deterministic: bool = False,
) -> PackedLinear:
    weights = as_weights(weight)
    check_quantization(weights, quantization)
    if dtype is None:
        first = weights[0]
        dtype = first.dtype if isinstance(first, Tensor) else torch.float32
    data: Tensor | Int8Weight | list[CodedWeight]
    kept = [w for w in weights if not isinstance(w, Tensor)]
    if quantization == "gguf" or isinstance(weights[0], (IntWeight, FloatWeight)):
        data = kept
        out_features, in_features = sum(w.out_features for w in kept), kept[0].in_features
        nbytes = sum(w.nbytes for w in kept)
    else:
        full = torch.cat([w if isinstance(w, Tensor) else dequantize(w) for w in weights])
        out_features, in_features = full.shape
        if quantization == "int8":
            data = quantize_int8(full)
        elif quantization == "int4":
            data = round_to_int4(full).to(dtype)
        else:
            data = full.to(dtype).contiguous()
        nbytes = out_features * in_features * (1 if quantization == "int8" else dtype.itemsize)
    if bias is not None and bias.shape != (out_features,):
        raise KernelError(f"pack_linear: bias {tuple(bias.shape)}, expected ({out_features},)")
    return PackedLinear(out_features, in_features, dtype, quantization, deterministic, bias, data, nbytes)


def linear(x: Tensor, packed: PackedLinear, out_dtype: torch.dtype | None = None, out: Tensor | None = None) -> Tensor:
    if x.dim() != 2 or x.shape[1] != packed.in_features:
        raise KernelError(f"linear: x has shape {tuple(x.shape)}, expected [rows, {packed.in_features}]")
    if isinstance(packed.data, Int8Weight):
        y = _linear_int8(x, packed.data)
    elif isinstance(packed.data, Tensor):
        y = _product(x.float(), packed.data.float(), packed.deterministic)
    else:
        y = torch.cat([_product(_rounded(x, w), dequantize(w), packed.deterministic) for w in packed.data], dim=1)
    if packed.bias is not None:
        y = y + packed.bias.float()
    return y.to(out_dtype or x.dtype) if out is None else out.copy_(y)


def _product(x: Tensor, weight: Tensor, deterministic: bool) -> Tensor:
    if not x.shape[0]:
        return x.new_empty(0, weight.shape[0])
    # One row at a time: a matrix product of another height may sum in another order.
    rows = [row.unsqueeze(0) for row in x.unbind()] if deterministic else [x]
    return torch.cat([F.linear(row, weight) for row in rows])


def _rounded(x: Tensor, weight: CodedWeight) -> Tensor:
    """`x` as the weight's format sees it: float32 `[rows, in]`, rounded to the codes of its activations."""
    if isinstance(weight, QuantizedWeight) or weight.activations is None:
        return x.float()
    if isinstance(weight, IntWeight) and weight.input_zero:
        assert weight.input_scale is not None
        codes = (x.float() / weight.input_scale + weight.input_zero).round().clamp(-INT8_MAX - 1, INT8_MAX)
        return (codes - weight.input_zero) * weight.input_scale
    group = weight.block[1] if isinstance(weight, FloatWeight) and weight.block is not None else None
    if group is not None and x.shape[1] % group:
        # The last tile is narrower: zeros beside it change neither its largest value nor its codes.
        x = F.pad(x, (0, group - x.shape[1] % group))
    codes, scales = quantize_rows(x, weight.activations, group, weight.input_scale)
    wide = codes.float() * scales.repeat_interleave(x.shape[1] // scales.shape[1], dim=1)
    return wide[:, : weight.in_features]


def quantize_int8(weight: Tensor) -> Int8Weight:
    """Symmetric, one scale per output channel."""
    wide = weight.float()
    scale = (wide.abs().amax(dim=1, keepdim=True) / 127).clamp_min(1e-12)
    return Int8Weight((wide / scale).round().clamp(-127, 127).to(torch.int8), scale)


def round_to_int4(weight: Tensor) -> Tensor:
    """The nearest weight that 4-bit codes with a scale and a minimum per group of 32 inputs can hold."""
    out_features, in_features = weight.shape
    if in_features % GROUP:
        raise KernelError(f"int4 needs input widths in multiples of {GROUP}, found {in_features}")
    groups = weight.float().view(out_features, -1, GROUP)
    low = groups.amin(dim=-1, keepdim=True)
    scale = ((groups.amax(dim=-1, keepdim=True) - low) / 15).clamp_min(1e-12)
    codes = ((groups - low) / scale).round().clamp(0, 15)
    return (codes * scale + low).view(out_features, in_features)


def _linear_int8(x: Tensor, weight: Int8Weight) -> Tensor:
    """W8A8: each row is scaled to [-127, 127] by its own largest value; the integer product is exact."""
    codes, scale = quantize_rows(x, "int8")
    # Products of int8 codes sum exactly in float64, so this is the integer result.
    return ((codes.double() @ weight.codes.double().T) * scale * weight.scale.T).float()
