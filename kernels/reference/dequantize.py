"""Coded weights widened to float32 in torch, on whatever device they lie. GGUF's formats: `kernels/gguf_formats.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kernels.contracts import CodedWeight, FloatWeight, IntWeight, KernelError, QuantizedWeight
from kernels.gguf_formats import FORMATS, GgufFormat


class TorchArrays:
    """Implements `gguf_formats.Arrays`."""

    def halves(self, blocks: Tensor, at: int) -> Tensor:
        return blocks[:, at : at + 2].contiguous().view(torch.float16).float()

    def floats(self, array: Tensor) -> Tensor:
        return array.float()

    def signed(self, array: Tensor) -> Tensor:
        return array.contiguous().view(torch.int8)

    def nibbles(self, packed: Tensor) -> Tensor:
        return torch.cat((packed & 15, packed >> 4), dim=-1)

    def fifth_bits(self, packed: Tensor) -> Tensor:
        bits = (packed.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8, device=packed.device)) & 1
        return bits.flatten(1) << 4

    def column(self, shifts: Sequence[int], like: Tensor) -> Tensor:
        return torch.tensor(shifts, dtype=torch.uint8, device=like.device).unsqueeze(1)

    def join(self, first: Tensor, second: Tensor) -> Tensor:
        return torch.cat((first, second), dim=1)

    def looked_up(self, table: Sequence[int], places: Tensor) -> Tensor:
        return torch.tensor(table, dtype=torch.int8, device=places.device)[places.long()]


TORCH = TorchArrays()


def dequantize(weight: CodedWeight) -> Tensor:
    """float32 `[out, in]`, the columns in the order of `x`.

    Raises `KernelError` for a GGUF type we do not know, rows of the wrong length or scales that do not fit the codes.
    """
    if isinstance(weight, IntWeight):
        return _widen_integers(weight)
    if isinstance(weight, FloatWeight):
        return _widen_floats(weight)
    form = format_of(weight)
    blocks = weight.data.reshape(-1, form.nbytes)
    if form.read is None:
        wide = blocks.contiguous().view(getattr(torch, form.dtype or "float32")).float()
    else:
        codes, scale, minimum = form.read(blocks, TORCH)
        wide = (codes.float() - form.zero) * scale
        if minimum is not None:
            wide += minimum
    return wide.reshape(weight.out_features, weight.in_features)


def rows_of(weight: CodedWeight, rows: Tensor | slice) -> CodedWeight:
    """Some output rows of a weight. A weight with tiles of scales takes no choice of rows, since they share them."""
    if isinstance(weight, QuantizedWeight):
        return replace(weight, data=weight.data[rows])
    if isinstance(weight, IntWeight):
        zero = None if weight.zero is None else weight.zero[rows]
        return replace(weight, codes=weight.codes[rows], scale=weight.scale[rows], zero=zero)
    if weight.block is not None:
        raise KernelError("rows of a weight with tiles of scales cannot be chosen")
    # Indexing is not implemented for float8 on every device; bytes are.
    codes = weight.codes.view(torch.uint8)[rows].view(weight.codes.dtype)
    return replace(weight, codes=codes, scale=weight.scale[rows])


def _widen_integers(weight: IntWeight) -> Tensor:
    groups = -(-weight.in_features // weight.group)
    if tuple(weight.scale.shape) != (weight.out_features, groups):
        raise KernelError(f"scales {tuple(weight.scale.shape)}, expected {(weight.out_features, groups)}")

    def per_input(values: Tensor) -> Tensor:
        return values.repeat_interleave(weight.group, dim=1)[:, : weight.in_features]

    zero = 2.0 ** (weight.bits - 1) if weight.zero is None else per_input(weight.zero)
    wide = (weight.codes.float() - zero) * per_input(weight.scale)
    if weight.columns is None:
        return wide
    ordered = torch.empty_like(wide)
    ordered[:, weight.columns] = wide
    return ordered


def _widen_floats(weight: FloatWeight) -> Tensor:
    scale = weight.scale
    if weight.block is not None:
        tall, wide = weight.block
        scale = scale.repeat_interleave(tall, dim=0)[: weight.out_features]
        scale = scale.repeat_interleave(wide, dim=1)[:, : weight.in_features]
    expected = (weight.out_features, 1 if weight.block is None else weight.in_features)
    if tuple(scale.shape) != expected:
        raise KernelError(f"scales {tuple(weight.scale.shape)} do not fit codes {tuple(weight.codes.shape)}")
    return weight.codes.float() * scale


def format_of(weight: QuantizedWeight) -> GgufFormat:
    """The row of the weight's type. Raises `KernelError` as `dequantize` does."""
    form = FORMATS.get(weight.type)
    if form is None:
        raise KernelError(f"GGUF type {weight.type!r} is not supported; known: {', '.join(sorted(FORMATS))}")
    row_bytes = weight.in_features // form.elements * form.nbytes
    if weight.in_features % form.elements or weight.data.shape[1] != row_bytes:
        raise KernelError(
            f"{weight.type}: {weight.in_features} inputs need {row_bytes} bytes a row, found {weight.data.shape[1]}"
        )
    return form
