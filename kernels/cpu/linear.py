"""Linear layers over packed panels (layout: `csrc/linear.h`). A row's bits do not depend on the rows beside it.

float32 weights run in float32 arithmetic, bfloat16 weights in float16 chunks (AVX512-FP16), AVX512-BF16 dots or float32
arithmetic, whichever this CPU does fastest; int8 and
the grouped 4- and 8-bit codes run as integer dots on activations rounded to 8 bits per group of inputs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
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
    width,
)
from kernels.cpu.float_weights import native_tiles, pack_floats
from kernels.cpu.integer_weights import KINDS, MEMORY, PANEL, native_group, pack_integers, panels
from kernels.cpu.library import LinearStruct, is_bf16, lib, native
from kernels.gguf_formats import BLOCKS
from kernels.grouped_weights import INT4_GROUP, GroupedWeight, quantize_int4, regroup
from kernels.reference.dequantize import dequantize, rows_of

HALF_STEP = 16
INT8_GROUP = 32
"""Inputs that share one activation scale under int8: outliers then cost precision in their own group only."""
SLAB = 8192
"""Weight rows widened at a time while packing, to bound the peak memory."""


@dataclass(slots=True)
class NativeLinear:
    """The C structure and the tensors that it points to."""

    struct: LinearStruct
    tensors: tuple[Tensor, ...]


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
        dtype = weights[0].dtype if isinstance(weights[0], Tensor) else torch.float32
    integers, floats = _integers(weights), _floats(weights)
    if not integers and not floats:
        weights = [dequantize(w) if isinstance(w, (IntWeight, FloatWeight)) else w for w in weights]
    outputs = sum(int(w.shape[0]) if isinstance(w, Tensor) else w.out_features for w in weights)
    inputs = width(weights[0])
    if bias is not None and bias.shape != (outputs,):
        raise KernelError(f"pack_linear: bias {tuple(bias.shape)}, expected ({outputs},)")
    struct = LinearStruct(n=outputs, k=inputs, group=INT8_GROUP)
    grouped = quantization == "int4" or (
        quantization == "gguf" and all(isinstance(w, QuantizedWeight) and w.type in BLOCKS for w in weights)
    )
    if integers:
        tensors = pack_integers(integers, struct)
    elif floats:
        tensors = pack_floats(floats, struct)
    elif grouped:
        tensors = _pack_groups(weights, struct)
    elif quantization == "int8":
        tensors = _pack_int8(weights, struct)
    elif dtype is torch.bfloat16 and lib().esc_has_half():
        tensors = _pack_half(weights, struct)
    else:
        tensors = _pack_float(weights, struct, bf16=dtype is torch.bfloat16)
    if bias is not None:
        padded = torch.zeros(panels(outputs) * PANEL)
        padded[:outputs] = bias.float()
        struct.bias = padded.data_ptr()
        tensors = (*tensors, padded)
    data = NativeLinear(struct, tensors)
    nbytes = sum(t.nbytes for t in tensors)
    return PackedLinear(outputs, inputs, dtype, quantization, deterministic, bias, data, nbytes)


def linear(x: Tensor, packed: PackedLinear, out_dtype: torch.dtype | None = None, out: Tensor | None = None) -> Tensor:
    if x.dim() != 2 or x.shape[1] != packed.in_features:
        raise KernelError(f"linear: x has shape {tuple(x.shape)}, expected [rows, {packed.in_features}]")
    wanted, shape = out_dtype or x.dtype, (x.shape[0], packed.out_features)
    source = native(x)
    if out is None:
        y = torch.empty(shape, dtype=torch.bfloat16 if wanted is torch.bfloat16 else torch.float32)
    elif tuple(out.shape) != shape or not out.is_contiguous() or out.dtype is not wanted:
        raise KernelError(f"linear: out is {out.dtype} {tuple(out.shape)}, expected contiguous {wanted} {shape}")
    else:
        y = out
    lib().esc_linear(
        ctypes.byref(packed.data.struct), source.data_ptr(), x.shape[0], y.data_ptr(), is_bf16(source), is_bf16(y)
    )
    return y.to(wanted)


def _integers(weights: Sequence[Weight]) -> list[IntWeight]:
    """The weights, where the kernels run their codes; none where they have to be widened."""
    found = [weight for weight in weights if isinstance(weight, IntWeight)]
    return found if len(found) == len(weights) and native_group(found) else []


def _floats(weights: Sequence[Weight]) -> list[FloatWeight]:
    """The same for float8."""
    found = [weight for weight in weights if isinstance(weight, FloatWeight)]
    return found if len(found) == len(weights) and native_tiles(found) else []


def _slabs(weights: list[Weight]) -> Iterator[tuple[int, Weight]]:
    """(first output row, slab) over all stacked weights."""
    row = 0
    for weight in weights:
        total = int(weight.shape[0]) if isinstance(weight, Tensor) else weight.out_features
        for start in range(0, total, SLAB):
            some = slice(start, min(total, start + SLAB))
            yield row + start, weight[some] if isinstance(weight, Tensor) else rows_of(weight, some)
        row += total


def _pack_float(weights: list[Weight], struct: LinearStruct, *, bf16: bool) -> tuple[Tensor, ...]:
    width = -(-struct.k // 2) * 2 if bf16 else struct.k
    packed = MEMORY.zeros(panels(struct.n) * PANEL * width, torch.bfloat16 if bf16 else torch.float32)
    for row, slab in _slabs(weights):
        source = native(slab if isinstance(slab, Tensor) else dequantize(slab))
        lib().esc_pack_float(
            source.data_ptr(), is_bf16(source), source.shape[0], struct.k, row, packed.data_ptr(), bf16
        )
    struct.kind, struct.weight = KINDS["bfloat16" if bf16 else "float32"], packed.data_ptr()
    return (packed,)


def _pack_half(weights: list[Weight], struct: LinearStruct) -> tuple[Tensor, ...]:
    rows = panels(struct.n) * PANEL
    packed = MEMORY.zeros(rows * (-(-struct.k // HALF_STEP) * HALF_STEP), torch.float16)
    scale = torch.zeros(rows)
    for row, slab in _slabs(weights):
        source = native(slab if isinstance(slab, Tensor) else dequantize(slab).bfloat16())
        lib().esc_pack_half(
            source.data_ptr(), is_bf16(source), source.shape[0], struct.k, row, packed.data_ptr(), scale.data_ptr()
        )
    struct.kind, struct.weight, struct.scale = KINDS["half"], packed.data_ptr(), scale.data_ptr()
    return packed, scale


def _pack_int8(weights: list[Weight], struct: LinearStruct) -> tuple[Tensor, ...]:
    rows = panels(struct.n) * PANEL
    packed = MEMORY.zeros(rows * (-(-struct.k // 8) * 8), torch.uint8)
    scale = torch.zeros(rows)
    for row, slab in _slabs(weights):
        source = native(slab if isinstance(slab, Tensor) else dequantize(slab))
        lib().esc_pack_int8(
            source.data_ptr(), is_bf16(source), source.shape[0], struct.k, row, packed.data_ptr(), scale.data_ptr()
        )
    struct.kind, struct.weight, struct.scale = KINDS["int8"], packed.data_ptr(), scale.data_ptr()
    return packed, scale


def _pack_groups(weights: list[Weight], struct: LinearStruct) -> tuple[Tensor, ...]:
    group, bits = _common_form(weights)
    rows, groups = panels(struct.n) * PANEL, struct.k // group
    packed = MEMORY.zeros(rows * struct.k * bits // 8, torch.uint8)
    scale, minimum = MEMORY.zeros(rows * groups, torch.float16), MEMORY.zeros(rows * groups, torch.float16)
    for row, slab in _slabs(weights):
        parts: GroupedWeight = quantize_int4(slab) if isinstance(slab, Tensor) else _regroup_or_round(slab)
        parts = parts.split_groups(group)
        lib().esc_pack_groups(
            parts.codes.data_ptr(),
            parts.scale.data_ptr(),
            parts.minimum.data_ptr(),
            parts.codes.shape[0],
            struct.k,
            group,
            row,
            bits,
            packed.data_ptr(),
            scale.data_ptr(),
            minimum.data_ptr(),
        )
    struct.kind, struct.group, struct.weight = KINDS[f"group{bits}"], group, packed.data_ptr()
    struct.group_scale, struct.group_min = scale.data_ptr(), minimum.data_ptr()
    return packed, scale, minimum


def _regroup_or_round(weight: CodedWeight) -> GroupedWeight:
    """The file's own codes where it has any; int4 of the widened weight otherwise."""
    if isinstance(weight, QuantizedWeight) and weight.type in BLOCKS:
        return regroup(weight)
    return quantize_int4(dequantize(weight))


def _common_form(weights: list[Weight]) -> tuple[int, int]:
    """(group, bits) that hold every stacked weight exactly: the smallest group, the widest code."""
    rows = [BLOCKS.get(weight.type) if isinstance(weight, QuantizedWeight) else None for weight in weights]
    forms = [(INT4_GROUP, 4) if row is None else (row.group, row.bits) for row in rows]
    return min(group for group, _ in forms), max(bits for _, bits in forms)
