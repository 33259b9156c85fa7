"""GGUF blocks widened to float32 in torch, on whatever device they lie. The formats: `kernels/gguf_formats.py`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.contracts import KernelError, QuantizedWeight
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


TORCH = TorchArrays()


def dequantize(weight: QuantizedWeight) -> Tensor:
    """float32 `[out, in]`. Raises `KernelError` for a type we do not know or rows of the wrong length."""
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
