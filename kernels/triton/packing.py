"""Weights in the layout of `product.multiply`: dense, integer codes in words, or bytes; stacked along their outputs.

Every checkpoint format and every GGUF encoding comes here in one of the values of `kernels/contracts.py`. What has no
layout of its own (scale groups that are no multiple of 16, tiles of odd widths) is widened to a dense weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.contracts import FloatWeight, IntWeight, KernelError, QuantizedWeight, Weight
from kernels.gguf_formats import BLOCKS
from kernels.grouped_weights import quantize_int4, regroup
from kernels.reference.dequantize import dequantize
from kernels.reference.linear import quantize_int8
from kernels.triton.launch import aligned
from kernels.triton.product import CHUNK, PARTS, SUB
from kernels.triton.quantize_rows import multiplies_fp8

PITCH = 16
"""Rows of bytes and of dense weights are padded to a multiple of it."""


@dataclass(slots=True)
class ProductWeight:
    """One weight, or as many as there are experts, one after the other in every tensor."""

    form: str
    outputs: int
    inputs: int
    pitch: int
    """Inputs of a stored row, or of all its words."""
    weight: Tensor
    scale: Tensor | None = None
    """`[groups, outputs]`: float32, or float16 where that holds integer codes' scales exactly."""
    offset: Tensor | None = None
    """The shape of `scale`: zero points, float16, or minima, float32."""
    offset_kind: str = ""
    """`zero`, `minimum`, or empty: the middle of the codes."""
    group: int = 0
    groups: int = 1
    columns: Tensor | None = None
    """The order of `x` that the codes want."""
    x_group: int = 0
    """Inputs that share a scale of activations; 0: activations are not rounded."""
    input_scale: float | None = None
    input_zero: float = 0.0
    correction: Tensor | None = None
    """float32 `[outputs]`: what the zero point of activations adds to every row."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        found = (self.weight, self.scale, self.offset, self.columns, self.correction)
        return tuple(tensor for tensor in found if tensor is not None)


@dataclass(slots=True)
class Codes:
    """Integer codes before packing: uint8 `[out, in]`, the other tensors `[out, groups]`."""

    codes: Tensor
    scale: Tensor
    offset: Tensor
    kind: str
    group: int
    bits: int


def pack(weights: Sequence[Weight], dtype: torch.dtype, quantization: str | None) -> ProductWeight:
    """Stacked along their outputs. `quantization` as in `pack_linear`, checked already."""
    integers = [w for w in weights if isinstance(w, IntWeight)]
    floats = [w for w in weights if isinstance(w, FloatWeight)]
    if integers:
        found = _pack_bytes_of_integers(integers) or _pack_integers(integers)
    elif floats:
        found = _pack_floats(floats)
    elif quantization == "gguf" and all(isinstance(w, QuantizedWeight) and w.type in BLOCKS for w in weights):
        found = _pack_codes([_codes_of_blocks(w) for w in weights if isinstance(w, QuantizedWeight)])
    elif quantization == "int4":
        found = _pack_codes([_nearest_int4(w) for w in weights])
    elif quantization == "int8":
        rounded = quantize_int8(_stacked(weights))
        found = _bytes("int8", rounded.codes, rounded.scale.t())
        found.x_group = found.inputs
    else:
        found = None
    return found or pack_dense(_stacked(weights).to(dtype))


def pack_dense(weight: Tensor) -> ProductWeight:
    outputs, inputs = weight.shape
    return ProductWeight("dense", outputs, inputs, inputs, aligned(weight), group=inputs)


def _stacked(weights: Sequence[Weight]) -> Tensor:
    return torch.cat([w if isinstance(w, Tensor) else dequantize(w) for w in weights])


def _bytes(form: str, codes: Tensor, scale: Tensor) -> ProductWeight:
    """`codes [out, in]` of one byte each, `scale [groups, out]`."""
    outputs, inputs = codes.shape
    pitch = -(-inputs // PITCH) * PITCH
    padded = F.pad(codes.view(torch.uint8), (0, pitch - inputs)).contiguous().view(codes.dtype)
    return ProductWeight(form, outputs, inputs, pitch, padded, scale.float().contiguous(), group=inputs)


def _pack_floats(weights: Sequence[FloatWeight]) -> ProductWeight | None:
    first = weights[0]
    widths = {w.block[1] if w.block is not None and w.block[1] < w.in_features else 0 for w in weights}
    group = max(widths)
    if len(widths) > 1 or group % CHUNK["float8"]:
        return None
    codes = torch.cat([w.codes.view(torch.uint8) for w in weights]).view(first.codes.dtype)
    scale = torch.cat([_scales_of_rows(w) for w in weights]).t()
    rounded = all(w.activations == "fp8" for w in weights) and multiplies_fp8(codes.device)
    found = _bytes("fp8" if rounded else "float8", codes, scale)
    if not rounded:
        found.weight = found.weight.view(torch.uint8)
    found.group, found.groups = group or found.inputs, scale.shape[0]
    scales = {w.input_scale for w in weights}
    if rounded:
        found.input_scale = scales.pop() if len(scales) == 1 else None
        # A given scale holds for whole rows, one that is found for as many inputs as a tile has.
        found.x_group = found.group if found.input_scale is None else found.inputs
    return found


def _scales_of_rows(weight: FloatWeight) -> Tensor:
    """`[out, tiles along the inputs]`."""
    if weight.block is None:
        return weight.scale.expand(weight.out_features, 1)
    tiles = weight.scale.repeat_interleave(weight.block[0], dim=0)[: weight.out_features]
    return tiles


def _pack_bytes_of_integers(weights: Sequence[IntWeight]) -> ProductWeight | None:
    """W8A8 where the format means it and a scale per output says all: products of codes are exact then."""
    first = weights[0]
    plain = all(
        w.bits == 8 and w.zero is None and w.columns is None and w.group >= w.in_features and w.activations == "int8"
        for w in weights
    )
    if not plain or len({(w.input_scale, w.input_zero) for w in weights}) > 1:
        return None
    codes = torch.cat([(w.codes ^ 128).view(torch.int8) for w in weights])
    scale = torch.cat([w.scale for w in weights]).t()
    found = _bytes("int8", codes, scale)
    found.x_group, found.input_scale, found.input_zero = found.inputs, first.input_scale, first.input_zero
    if first.input_scale is not None and first.input_zero:
        sums = codes.sum(dim=1, dtype=torch.int64).double()
        found.correction = (-first.input_zero * first.input_scale * sums * scale[0].double()).float()
    return found


def _pack_integers(weights: Sequence[IntWeight]) -> ProductWeight | None:
    columns = weights[0].columns
    for weight in weights[1:]:
        one = weight.columns
        if (one is None) != (columns is None) or (one is not None and not torch.equal(one, columns)):  # type: ignore[arg-type]
            raise KernelError("weights with other orders of their columns cannot be stacked")
    found = _pack_codes([_codes_of_integers(w) for w in weights])
    if found is not None:
        found.columns = columns
    return found


def _codes_of_integers(weight: IntWeight) -> Codes:
    middle = torch.full_like(weight.scale, 2.0 ** (weight.bits - 1))
    zero = middle if weight.zero is None else weight.zero
    group = min(weight.group, weight.in_features)
    return Codes(weight.codes, weight.scale, zero, "zero", group, 4 if weight.bits <= 4 else 8)


def _codes_of_blocks(weight: QuantizedWeight) -> Codes:
    parts = regroup(weight)
    return Codes(parts.codes, parts.scale, parts.minimum, "minimum", parts.group, parts.bits)


def _nearest_int4(weight: Weight) -> Codes:
    parts = quantize_int4(weight if isinstance(weight, Tensor) else dequantize(weight))
    return Codes(parts.codes, parts.scale, parts.minimum, "minimum", parts.group, 4)


def _pack_codes(parts: Sequence[Codes]) -> ProductWeight | None:
    """None where no group of whole shifts holds all of them exactly."""
    inputs = parts[0].codes.shape[1]
    shared = gcd(*(part.group for part in parts if part.group < inputs)) if parts else 0
    group = shared or -(-inputs // SUB) * SUB
    if group % SUB:
        return None
    groups, bits = -(-inputs // group), max(part.bits for part in parts)
    owners = torch.arange(groups, device=parts[0].codes.device) * group

    def spread(values: Tensor, part: Codes) -> Tensor:
        return values[:, owners // part.group].float()

    scale = torch.cat([spread(part.scale, part) for part in parts]).t()
    offset = torch.cat([spread(part.offset, part) for part in parts]).t()
    kind = parts[0].kind
    held: Tensor | None = offset.contiguous()
    if kind == "zero":
        middle = bool((offset == 2 ** (bits - 1)).all())
        kind, held = ("", None) if middle else ("zero", offset.half().contiguous())
    half = scale.half()
    exact = kind != "minimum" and torch.equal(half.float(), scale)
    form = f"codes{bits}"
    words, pitch = words_of(torch.cat([part.codes for part in parts]), form)
    return ProductWeight(
        form,
        words.shape[1],
        inputs,
        pitch,
        words,
        (half if exact else scale).contiguous(),
        held,
        kind,
        group,
        groups,
    )


def words_of(codes: Tensor, form: str) -> tuple[Tensor, int]:
    """int32 `[padded inputs / codes per word, outputs]` of uint8 codes `[outputs, inputs]`, and the padded inputs.

    Word `w` of a chunk holds its inputs `w`, `w + 16`, `w + 32`, ..., the first of them in the lowest bits.
    """
    outputs, inputs = codes.shape
    chunk, parts = CHUNK[form], PARTS[form]
    pitch = -(-inputs // chunk) * chunk
    runs = F.pad(codes, (0, pitch - inputs)).view(outputs, pitch // chunk, parts, SUB)
    words = torch.zeros(outputs, pitch // chunk, SUB, dtype=torch.int32, device=codes.device)
    for part in range(parts):
        words |= runs[:, :, part].to(torch.int32) << (32 // parts * part)
    return words.view(outputs, -1).t().contiguous(), pitch
