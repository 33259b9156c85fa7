"""GGUF block formats widened to float32. Layouts: ggml-common.h of the ggml project (MIT), re-expressed in torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.contracts import KernelError, QuantizedWeight


def dequantize(weight: QuantizedWeight) -> Tensor:
    """float32 `[out, in]`. Raises `KernelError` for a type we do not know or rows of the wrong length."""
    if weight.type not in FORMATS:
        raise KernelError(f"GGUF type {weight.type!r} is not supported; known: {', '.join(sorted(FORMATS))}")
    elements, size, widen = FORMATS[weight.type]
    out_features, row_bytes = weight.data.shape
    if weight.in_features % elements or row_bytes != weight.in_features // elements * size:
        raise KernelError(
            f"{weight.type}: {weight.in_features} inputs need {weight.in_features // elements * size} bytes "
            f"a row, found {row_bytes}"
        )
    return widen(weight.data.reshape(-1, size)).reshape(out_features, weight.in_features)


def _half(blocks: Tensor, start: int) -> Tensor:
    """The float16 at byte `start` of each block, as float32 `[blocks, 1]`."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """`[blocks, n]` bytes to `[blocks, 2n]`: all low halves first, then all high halves."""
    return torch.cat((packed & 15, packed >> 4), dim=-1).float()


def _fifth_bits(blocks: Tensor, start: int) -> Tensor:
    """32 bits of each block, as 0 or 16."""
    bits = (blocks[:, start : start + 4].unsqueeze(-1) >> torch.arange(8, device=blocks.device)) & 1
    return bits.flatten(1).float() * 16


def _q4_0(blocks: Tensor) -> Tensor:
    return (_nibbles(blocks[:, 2:]) - 8) * _half(blocks, 0)


def _q4_1(blocks: Tensor) -> Tensor:
    return _nibbles(blocks[:, 4:]) * _half(blocks, 0) + _half(blocks, 2)


def _q5_0(blocks: Tensor) -> Tensor:
    return (_nibbles(blocks[:, 6:]) + _fifth_bits(blocks, 2) - 16) * _half(blocks, 0)


def _q5_1(blocks: Tensor) -> Tensor:
    return (_nibbles(blocks[:, 8:]) + _fifth_bits(blocks, 4)) * _half(blocks, 0) + _half(blocks, 2)


def _q8_0(blocks: Tensor) -> Tensor:
    return blocks[:, 2:].contiguous().view(torch.int8).float() * _half(blocks, 0)


def scales_and_minima(packed: Tensor) -> tuple[Tensor, Tensor]:
    """The eight 6-bit scales and eight 6-bit minima in the 12 bytes of a K block: float32 `[blocks, 8]` each."""
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = torch.cat((low & 63, (high & 15) | ((low >> 6) << 4)), dim=1)
    minima = torch.cat((middle & 63, (high >> 4) | ((middle >> 6) << 4)), dim=1)
    return scales.float(), minima.float()


def _pairs_of_32(packed: Tensor) -> Tensor:
    """128 bytes hold 256 codes: 32 low halves, then 32 high halves of the same 32 bytes. `[blocks, 8, 32]`."""
    chunks = packed.view(-1, 4, 1, 32)
    return torch.cat((chunks & 15, chunks >> 4), dim=2).view(-1, 8, 32)


def _q4_k(blocks: Tensor) -> Tensor:
    scales, minima = scales_and_minima(blocks[:, 4:16])
    codes = _pairs_of_32(blocks[:, 16:144].contiguous()).float()
    return codes * (scales * _half(blocks, 0)).unsqueeze(-1) - (minima * _half(blocks, 2)).unsqueeze(-1)


def _q5_k(blocks: Tensor) -> Tensor:
    scales, minima = scales_and_minima(blocks[:, 4:16])
    codes = _pairs_of_32(blocks[:, 48:176].contiguous())
    shifts = torch.arange(8, device=blocks.device).view(1, 8, 1)
    codes = (codes + (((blocks[:, 16:48].unsqueeze(1) >> shifts) & 1) << 4)).float()
    return codes * (scales * _half(blocks, 0)).unsqueeze(-1) - (minima * _half(blocks, 2)).unsqueeze(-1)


def _q6_k(blocks: Tensor) -> Tensor:
    low, high = blocks[:, :128].view(-1, 2, 64), blocks[:, 128:192].view(-1, 2, 1, 32)
    fours = torch.stack((low[:, :, :32] & 15, low[:, :, 32:] & 15, low[:, :, :32] >> 4, low[:, :, 32:] >> 4), dim=2)
    twos = (high >> torch.tensor([0, 2, 4, 6], device=blocks.device, dtype=torch.uint8).view(1, 1, 4, 1)) & 3
    codes = (fours | (twos << 4)).float() - 32
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float() * _half(blocks, 208)
    return codes.view(-1, 16, 16) * scales.unsqueeze(-1)


def _half_rows(blocks: Tensor) -> Tensor:
    return blocks.contiguous().view(torch.float16).float()


def _brain_rows(blocks: Tensor) -> Tensor:
    return blocks.contiguous().view(torch.bfloat16).float()


def _float_rows(blocks: Tensor) -> Tensor:
    return blocks.contiguous().view(torch.float32)


FORMATS: dict[str, tuple[int, int, Callable[[Tensor], Tensor]]] = {
    "F32": (1, 4, _float_rows),
    "F16": (1, 2, _half_rows),
    "BF16": (1, 2, _brain_rows),
    "Q4_0": (32, 18, _q4_0),
    "Q4_1": (32, 20, _q4_1),
    "Q5_0": (32, 22, _q5_0),
    "Q5_1": (32, 24, _q5_1),
    "Q8_0": (32, 34, _q8_0),
    "Q4_K": (256, 144, _q4_k),
    "Q5_K": (256, 176, _q5_k),
    "Q6_K": (256, 210, _q6_k),
}
"""type -> (elements a block, bytes a block, blocks [n, bytes] to float32)."""
