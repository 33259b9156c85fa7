"""GGUF block encodings to dense tensors, with NumPy on chunks that stay in cache, in a few threads.

One function per encoding: uint8 blocks [n, bytes of a block] -> float32 [n, weights of a block]. Knows no files.
NumPy rather than torch: its loops release the GIL and start no OpenMP team, which on a busy machine waits at a barrier
for each small operation. Source: the block structures in ggml-common.h; checked against the `gguf` package bit for bit.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.weights.gguf_file import BLOCK_LAYOUT, QuantType

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
_CHUNK_WEIGHTS = 1 << 15
_THREADED_FROM = 1 << 19
"""Weights from which starting threads pays."""
_MOST_THREADS = 8


def dequantize(raw: Bytes, quant: QuantType, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """`raw` uint8 [bytes] -> [shape] in `dtype`. Arithmetic is float32, rounded once at the end."""
    if quant in PLAIN:
        return torch.from_numpy(raw.copy()).view(PLAIN[quant]).view(shape).to(dtype)
    weights, nbytes = BLOCK_LAYOUT[quant]
    blocks = raw.reshape(-1, nbytes)
    out = torch.empty(len(blocks), weights, dtype=dtype)
    decode, step = _DECODERS[quant], _CHUNK_WEIGHTS // weights

    def fill(first: int, end: int) -> None:
        # The mode belongs to a thread, and `out` to the caller's.
        with torch.inference_mode(out.is_inference()):
            for start in range(first, end, step):
                stop = min(start + step, end)
                out[start:stop] = torch.from_numpy(decode(blocks[start:stop]))

    threads = min(_MOST_THREADS, os.cpu_count() or 1)
    if out.numel() < _THREADED_FROM or threads == 1:
        fill(0, len(blocks))
    else:
        edges = [len(blocks) * part // threads for part in range(threads + 1)]
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(fill, edges, edges[1:]))
    return out.view(shape)


def _half(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte `at` of each block, as float32 [n, 1]."""
    return blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """[..., k] -> [..., 2k]: all low halves, then all high halves."""
    size = packed.shape[-1]
    out = np.empty((*packed.shape[:-1], 2 * size), dtype=np.uint8)
    np.bitwise_and(packed, 15, out=out[..., :size])
    np.right_shift(packed, 4, out=out[..., size:])
    return out


def _fifth_bits(packed: Bytes) -> Bytes:
    """[n, k] -> [n, 8k], lowest bit first, each 0 or 16."""
    return _FIFTH_BITS[packed].view(np.uint8)


# Eight bytes in one int64, so that expanding a byte is one gathered element.
_FIFTH_BITS = (((np.arange(256)[:, None] >> np.arange(8)) & 1) << 4).astype(np.uint8).view(np.int64).ravel()


def _scaled(codes: NDArray[np.generic], offset: float, scale: Floats, minimum: Floats | None = None) -> Floats:
    """(codes - offset) * scale + minimum, in place on one new float32 array."""
    out = codes.astype(np.float32)
    if offset:
        out -= np.float32(offset)
    out *= scale
    if minimum is not None:
        out += minimum
    return out


def _q4_0(blocks: Bytes) -> Floats:
    return _scaled(_nibbles(blocks[:, 2:]), 8, _half(blocks, 0))


def _q4_1(blocks: Bytes) -> Floats:
    return _scaled(_nibbles(blocks[:, 4:]), 0, _half(blocks, 0), _half(blocks, 2))


def _q5_0(blocks: Bytes) -> Floats:
    codes = _nibbles(blocks[:, 6:])
    codes |= _fifth_bits(blocks[:, 2:6])
    return _scaled(codes, 16, _half(blocks, 0))


def _q5_1(blocks: Bytes) -> Floats:
    codes = _nibbles(blocks[:, 8:])
    codes |= _fifth_bits(blocks[:, 4:8])
    return _scaled(codes, 0, _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: Bytes) -> Floats:
    return _scaled(blocks[:, 2:].view(np.int8), 0, _half(blocks, 0))


def _k_scales(packed: Bytes) -> tuple[Floats, Floats]:
    """Twelve bytes -> eight 6-bit scales and eight 6-bit minima, float32 [n, 8] each."""
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate((first & 63, (third & 15) | ((first >> 6) << 4)), axis=1)
    minima = np.concatenate((second & 63, (third >> 4) | ((second >> 6) << 4)), axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _scale_groups(codes: Bytes, blocks: Bytes) -> Floats:
    """codes [n, 8, 32] with the header of Q4_K and Q5_K: d * scale * code - dmin * minimum."""
    scales, minima = _k_scales(blocks[:, 4:16])
    scales *= _half(blocks, 0)
    minima *= -_half(blocks, 2)
    return _scaled(codes, 0, scales[:, :, None], minima[:, :, None]).reshape(len(blocks), 256)


def _q4_k(blocks: Bytes) -> Floats:
    codes = _nibbles(blocks[:, 16:144].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return _scale_groups(codes, blocks)


def _q5_k(blocks: Bytes) -> Floats:
    codes = _nibbles(blocks[:, 48:176].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    high = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]
    codes |= (high & 1) << 4
    return _scale_groups(codes, blocks)


def _q6_k(blocks: Bytes) -> Floats:
    codes = _nibbles(blocks[:, 0:128].reshape(-1, 2, 64)).reshape(-1, 8, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    codes |= ((high & 3) << 4).reshape(-1, 8, 32)
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32) * _half(blocks, 208)
    return _scaled(codes.reshape(-1, 16, 16), 32, scales[:, :, None]).reshape(len(blocks), 256)


PLAIN = {QuantType.F32: torch.float32, QuantType.F16: torch.float16, QuantType.BF16: torch.bfloat16}
"""Encodings without blocks -> the type of their numbers."""
_DECODERS: dict[QuantType, Callable[[Bytes], Floats]] = {
    QuantType.Q4_0: _q4_0,
    QuantType.Q4_1: _q4_1,
    QuantType.Q5_0: _q5_0,
    QuantType.Q5_1: _q5_1,
    QuantType.Q8_0: _q8_0,
    QuantType.Q4_K: _q4_k,
    QuantType.Q5_K: _q5_k,
    QuantType.Q6_K: _q6_k,
}
