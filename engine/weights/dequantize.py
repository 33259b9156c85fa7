"""GGUF block encodings to dense tensors, with NumPy on chunks that stay in cache, in a few threads.

The encodings are rows of `kernels/gguf_formats.py`; here are NumPy's ways for what their readers need. Knows no files.
NumPy rather than torch: its loops release the GIL and start no OpenMP team, which on a busy machine waits at a barrier
for each small operation. Checked against the `gguf` package bit for bit.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.gguf_formats import GgufFormat

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
_CHUNK_WEIGHTS = 1 << 15
_THREADED_FROM = 1 << 19
"""Weights from which starting threads pays."""
_MOST_THREADS = 8


def dequantize(raw: Bytes, form: GgufFormat, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """`raw` uint8 [bytes] -> [shape] in `dtype`. Arithmetic is float32, rounded once at the end."""
    if form.dtype is not None:
        return torch.from_numpy(raw.copy()).view(getattr(torch, form.dtype)).view(shape).to(dtype)
    blocks = raw.reshape(-1, form.nbytes)
    out = torch.empty(len(blocks), form.elements, dtype=dtype)
    step = _CHUNK_WEIGHTS // form.elements

    def fill(first: int, end: int) -> None:
        # The mode belongs to a thread, and `out` to the caller's.
        with torch.inference_mode(out.is_inference()):
            for start in range(first, end, step):
                stop = min(start + step, end)
                out[start:stop] = torch.from_numpy(_decode(form, blocks[start:stop]))

    threads = min(_MOST_THREADS, os.cpu_count() or 1)
    if out.numel() < _THREADED_FROM or threads == 1:
        fill(0, len(blocks))
    else:
        edges = [len(blocks) * part // threads for part in range(threads + 1)]
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(fill, edges, edges[1:]))
    return out.view(shape)


class NumpyArrays:
    """Implements `kernels.gguf_formats.Arrays`."""

    def halves(self, blocks: Bytes, at: int) -> Floats:
        return blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)

    def floats(self, array: NDArray[np.generic]) -> Floats:
        return array.astype(np.float32)

    def signed(self, array: Bytes) -> NDArray[np.int8]:
        return array.view(np.int8)

    def nibbles(self, packed: Bytes) -> Bytes:
        size = packed.shape[-1]
        out = np.empty((*packed.shape[:-1], 2 * size), dtype=np.uint8)
        np.bitwise_and(packed, 15, out=out[..., :size])
        np.right_shift(packed, 4, out=out[..., size:])
        return out

    def fifth_bits(self, packed: Bytes) -> Bytes:
        return _FIFTH_BITS[packed].view(np.uint8)

    def column(self, shifts: Sequence[int], like: Bytes) -> Bytes:  # noqa: ARG002 - there is one device
        return np.array(shifts, dtype=np.uint8)[:, None]

    def join(self, first: Bytes, second: Bytes) -> Bytes:
        return np.concatenate((first, second), axis=1)

    def looked_up(self, table: Sequence[int], places: Bytes) -> NDArray[np.int8]:
        return np.array(table, dtype=np.int8)[places]


_NUMPY = NumpyArrays()
# Eight bytes in one int64, so that expanding a byte is one gathered element.
_FIFTH_BITS = (((np.arange(256)[:, None] >> np.arange(8)) & 1) << 4).astype(np.uint8).view(np.int64).ravel()


def _decode(form: GgufFormat, blocks: Bytes) -> Floats:
    """float32 [n, weights of a block], in place on one new array."""
    assert form.read is not None
    codes, scale, minimum = form.read(blocks, _NUMPY)
    out: Floats = codes.astype(np.float32)
    if form.zero:
        out -= np.float32(form.zero)
    out *= scale
    if minimum is not None:
        out += minimum
    return out.reshape(len(blocks), form.elements)
