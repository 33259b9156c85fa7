"""GGUF block encodings to dense tensors, with torch operations on chunks that stay in cache.

One function per encoding: uint8 blocks [n, bytes of a block] -> float32 [n, weights of a block]. Knows no files.
Source: the block structures in ggml-common.h; checked against the `gguf` package bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.weights.gguf_file import BLOCK_LAYOUT, QuantType

_CHUNK_WEIGHTS = 1 << 19


def dequantise(raw: Tensor, quant: QuantType, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """`raw` uint8 [bytes] -> [shape] in `dtype`. Arithmetic is float32, rounded once at the end."""
    if quant in _PLAIN:
        return raw.clone().view(_PLAIN[quant]).view(shape).to(dtype)
    weights, nbytes = BLOCK_LAYOUT[quant]
    blocks = raw.view(-1, nbytes)
    out = torch.empty(blocks.shape[0], weights, dtype=dtype)
    decode, step = _DECODERS[quant], _CHUNK_WEIGHTS // weights
    for start in range(0, blocks.shape[0], step):
        chunk = blocks[start : start + step]
        out[start : start + step] = decode(chunk)
    return out.view(shape)


def _half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at byte `at` of each block, as float32 [n, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """uint8 [n, k] -> uint8 [n, 2k]: all low halves, then all high halves."""
    return torch.cat((packed & 15, packed >> 4), dim=1)


def _bits(packed: Tensor) -> Tensor:
    """uint8 [n, k] -> uint8 [n, 8k], lowest bit first, each 0 or 16 (the fifth bit of a weight)."""
    return _FIFTH_BITS[packed.int()].view(torch.uint8)


# Eight bytes in one int64, so that expanding a byte is one gathered element.
_FIFTH_BITS = (((torch.arange(256)[:, None] >> torch.arange(8)) & 1) << 4).to(torch.uint8).view(torch.int64).flatten()


def _q4_0(blocks: Tensor) -> Tensor:
    return (_nibbles(blocks[:, 2:]).float() - 8.0) * _half(blocks, 0)


def _q4_1(blocks: Tensor) -> Tensor:
    return _nibbles(blocks[:, 4:]).float() * _half(blocks, 0) + _half(blocks, 2)


def _q5_0(blocks: Tensor) -> Tensor:
    weights = _nibbles(blocks[:, 6:]) | _bits(blocks[:, 2:6])
    return (weights.float() - 16.0) * _half(blocks, 0)


def _q5_1(blocks: Tensor) -> Tensor:
    weights = _nibbles(blocks[:, 8:]) | _bits(blocks[:, 4:8])
    return weights.float() * _half(blocks, 0) + _half(blocks, 2)


def _q8_0(blocks: Tensor) -> Tensor:
    return blocks[:, 2:].view(torch.int8).float() * _half(blocks, 0)


def _k_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Twelve bytes -> eight 6-bit scales and eight 6-bit minima, float32 [n, 8] each."""
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = torch.cat((first & 63, (third & 15) | ((first >> 6) << 4)), dim=1)
    minima = torch.cat((second & 63, (third >> 4) | ((second >> 6) << 4)), dim=1)
    return scales.float(), minima.float()


def _scale_groups(weights: Tensor, blocks: Tensor) -> Tensor:
    """weights uint8 [n, 8, 32] with the header of Q4_K and Q5_K: d * scale * w - dmin * minimum."""
    scales, minima = _k_scales(blocks[:, 4:16])
    scaled = weights.float() * (scales * _half(blocks, 0)).unsqueeze(2)
    return (scaled - (minima * _half(blocks, 2)).unsqueeze(2)).flatten(1)


def _q4_k(blocks: Tensor) -> Tensor:
    pairs = blocks[:, 16:144].reshape(-1, 4, 1, 32)
    weights = torch.cat((pairs & 15, pairs >> 4), dim=2).view(-1, 8, 32)
    return _scale_groups(weights, blocks)


def _q5_k(blocks: Tensor) -> Tensor:
    pairs = blocks[:, 48:176].reshape(-1, 4, 1, 32)
    weights = torch.cat((pairs & 15, pairs >> 4), dim=2).view(-1, 8, 32)
    high = blocks[:, 16:48].unsqueeze(1) >> torch.arange(8, dtype=torch.uint8)[:, None]
    return _scale_groups(weights | ((high & 1) << 4), blocks)


def _q6_k(blocks: Tensor) -> Tensor:
    low = blocks[:, 0:128].reshape(-1, 2, 1, 64)
    low = torch.cat((low & 15, low >> 4), dim=2).view(-1, 8, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    high = (high >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]) & 3
    weights = (low | (high.view(-1, 8, 32) << 4)).view(-1, 16, 16)
    scales = blocks[:, 192:208].view(torch.int8).float() * _half(blocks, 208)
    return ((weights.float() - 32.0) * scales.unsqueeze(2)).flatten(1)


_PLAIN = {QuantType.F32: torch.float32, QuantType.F16: torch.float16, QuantType.BF16: torch.bfloat16}
_DECODERS: dict[QuantType, Callable[[Tensor], Tensor]] = {
    QuantType.Q4_0: _q4_0,
    QuantType.Q4_1: _q4_1,
    QuantType.Q5_0: _q5_0,
    QuantType.Q5_1: _q5_1,
    QuantType.Q8_0: _q8_0,
    QuantType.Q4_K: _q4_k,
    QuantType.Q5_K: _q5_k,
    QuantType.Q6_K: _q6_k,
}
