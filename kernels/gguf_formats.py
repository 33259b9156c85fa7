"""Table of the GGUF encodings that we read: one row each, with the one function that takes its blocks apart.

Every weight of a block is `(code - zero) * scale + minimum`. What reads a file (NumPy), the reference ops (torch), the
packing of the C++ kernels and the check for numbers that are not finite all go by these rows. The readers are written
over `Arrays`, so that each library keeps its own fast ways. Imports neither. Source: the block structures in
ggml-common.h of the ggml project (MIT).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

Array: TypeAlias = Any
"""`numpy.ndarray` or `torch.Tensor`."""
Parts: TypeAlias = tuple[Array, Array, Array | None]
"""Codes `[n, groups, group]` (uint8, or int8 whose zero is 0); float32 scales and minima (None: 0) that spread over
them. `[n, group]` and `[n, 1]` where a block is one group."""


class Arrays(Protocol):
    """What the readers need of an array library beyond slices, `reshape` and bit operators."""

    def halves(self, blocks: Array, at: int) -> Array:
        """The float16 at byte `at` of each block, as float32 `[n, 1]`."""

    def floats(self, array: Array) -> Array:
        """As float32."""

    def signed(self, array: Array) -> Array:
        """The same bytes as int8."""

    def nibbles(self, packed: Array) -> Array:
        """`[..., k]` -> `[..., 2k]`: all low halves, then all high halves. A new array."""

    def fifth_bits(self, packed: Array) -> Array:
        """`[n, k]` -> `[n, 8k]`, lowest bit first, each 0 or 16."""

    def column(self, shifts: Sequence[int], like: Array) -> Array:
        """uint8 `[len(shifts), 1]` on the device of `like`."""

    def join(self, first: Array, second: Array) -> Array:
        """Side by side along dimension 1."""

    def looked_up(self, table: Sequence[int], places: Array) -> Array:
        """int8, the values of `table` at `places`."""


@dataclass(frozen=True, slots=True)
class GgufFormat:
    """One encoding. `id` is ggml's number of it; plain encodings have one element a block, and `dtype`."""

    name: str
    id: int
    elements: int
    nbytes: int
    """Of a block."""
    dtype: str | None = None
    """Of a plain encoding, as torch and NumPy name it."""
    read: Callable[[Array, Arrays], Parts] | None = None
    """Blocks, uint8 `[n, nbytes]`, to codes, scales and minima."""
    zero: int = 0
    """The code that stands for 0 before the minimum is added."""
    halves_at: tuple[int, ...] = (0,)
    """The bytes of a block at which a float16 scale or minimum begins."""
    group: int = 32
    """Weights that share a scale."""
    bits: int = 8
    """What the kernels store a code in: 4 or 8."""


def _q4_0(blocks: Array, arrays: Arrays) -> Parts:
    return arrays.nibbles(blocks[:, 2:]), arrays.halves(blocks, 0), None


def _q4_1(blocks: Array, arrays: Arrays) -> Parts:
    return arrays.nibbles(blocks[:, 4:]), arrays.halves(blocks, 0), arrays.halves(blocks, 2)


def _q5_0(blocks: Array, arrays: Arrays) -> Parts:
    codes = arrays.nibbles(blocks[:, 6:])
    codes |= arrays.fifth_bits(blocks[:, 2:6])
    return codes, arrays.halves(blocks, 0), None


def _q5_1(blocks: Array, arrays: Arrays) -> Parts:
    codes = arrays.nibbles(blocks[:, 8:])
    codes |= arrays.fifth_bits(blocks[:, 4:8])
    return codes, arrays.halves(blocks, 0), arrays.halves(blocks, 2)


def _q8_0(blocks: Array, arrays: Arrays) -> Parts:
    return arrays.signed(blocks[:, 2:]), arrays.halves(blocks, 0), None


def _k_scales(blocks: Array, arrays: Arrays) -> tuple[Array, Array]:
    """The header of Q4_K and Q5_K: eight 6-bit scales and minima in twelve bytes, multiplied out, `[n, 8, 1]` each."""
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = arrays.floats(arrays.join(first & 63, (third & 15) | ((first >> 6) << 4)))
    minima = arrays.floats(arrays.join(second & 63, (third >> 4) | ((second >> 6) << 4)))
    scales *= arrays.halves(blocks, 0)
    minima *= -arrays.halves(blocks, 2)
    return scales[:, :, None], minima[:, :, None]


def _q2_k(blocks: Array, arrays: Arrays) -> Parts:
    codes = (blocks[:, 16:80].reshape(-1, 2, 1, 32) >> arrays.column((0, 2, 4, 6), blocks)) & 3
    scales, minima = arrays.floats(blocks[:, :16] & 15), arrays.floats(blocks[:, :16] >> 4)
    scales *= arrays.halves(blocks, 80)
    minima *= -arrays.halves(blocks, 82)
    return codes.reshape(-1, 16, 16), scales[:, :, None], minima[:, :, None]


def _q3_k(blocks: Array, arrays: Arrays) -> Parts:
    codes = ((blocks[:, 32:96].reshape(-1, 2, 1, 32) >> arrays.column((0, 2, 4, 6), blocks)) & 3).reshape(-1, 8, 32)
    codes |= ((blocks[:, None, :32] >> arrays.column(range(8), blocks)) & 1) << 2
    low, high = blocks[:, 96:104], blocks[:, 104:108]
    upper = (arrays.join(high, high >> 2), arrays.join(high >> 4, high >> 6))
    scales = arrays.floats(arrays.join(low & 15, low >> 4) | ((arrays.join(*upper) & 3) << 4))
    scales -= 32
    scales *= arrays.halves(blocks, 108)
    return codes.reshape(-1, 16, 16), scales[:, :, None], None


IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""What the 4-bit codes of IQ4 stand for: closer to each other where weights are many."""


def _iq4_nl(blocks: Array, arrays: Arrays) -> Parts:
    return arrays.looked_up(IQ4_VALUES, arrays.nibbles(blocks[:, 2:])), arrays.halves(blocks, 0), None


def _iq4_xs(blocks: Array, arrays: Arrays) -> Parts:
    codes = arrays.looked_up(IQ4_VALUES, arrays.nibbles(blocks[:, 8:].reshape(-1, 8, 16)))
    # Each byte of the low scales holds two neighbors, each of the high ones four.
    low = (blocks[:, 4:8, None] >> arrays.column((0, 4), blocks)[:, 0]) & 15
    high = (blocks[:, 2:4, None] >> arrays.column((0, 2, 4, 6), blocks)[:, 0]) & 3
    scales = arrays.floats(low.reshape(-1, 8) | (high.reshape(-1, 8) << 4))
    scales -= 32
    scales *= arrays.halves(blocks, 0)
    return codes, scales[:, :, None], None


def _q4_k(blocks: Array, arrays: Arrays) -> Parts:
    codes = arrays.nibbles(blocks[:, 16:144].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return codes, *_k_scales(blocks, arrays)


def _q5_k(blocks: Array, arrays: Arrays) -> Parts:
    codes = arrays.nibbles(blocks[:, 48:176].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    codes |= ((blocks[:, None, 16:48] >> arrays.column(range(8), blocks)) & 1) << 4
    return codes, *_k_scales(blocks, arrays)


def _q6_k(blocks: Array, arrays: Arrays) -> Parts:
    codes = arrays.nibbles(blocks[:, 0:128].reshape(-1, 2, 64)).reshape(-1, 8, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> arrays.column((0, 2, 4, 6), blocks)
    codes |= ((high & 3) << 4).reshape(-1, 8, 32)
    scales = arrays.floats(arrays.signed(blocks[:, 192:208]))
    scales *= arrays.halves(blocks, 208)
    return codes.reshape(-1, 16, 16), scales[:, :, None], None


_ROWS = (
    GgufFormat("F32", 0, 1, 4, dtype="float32"),
    GgufFormat("F16", 1, 1, 2, dtype="float16"),
    GgufFormat("Q4_0", 2, 32, 18, read=_q4_0, zero=8, bits=4),
    GgufFormat("Q4_1", 3, 32, 20, read=_q4_1, halves_at=(0, 2), bits=4),
    GgufFormat("Q5_0", 6, 32, 22, read=_q5_0, zero=16),
    GgufFormat("Q5_1", 7, 32, 24, read=_q5_1, halves_at=(0, 2)),
    GgufFormat("Q8_0", 8, 32, 34, read=_q8_0),
    GgufFormat("Q2_K", 10, 256, 84, read=_q2_k, halves_at=(80, 82), group=16, bits=4),
    GgufFormat("Q3_K", 11, 256, 110, read=_q3_k, zero=4, halves_at=(108,), group=16, bits=4),
    GgufFormat("Q4_K", 12, 256, 144, read=_q4_k, halves_at=(0, 2), bits=4),
    GgufFormat("Q5_K", 13, 256, 176, read=_q5_k, halves_at=(0, 2)),
    GgufFormat("Q6_K", 14, 256, 210, read=_q6_k, zero=32, halves_at=(208,), group=16),
    GgufFormat("IQ4_NL", 20, 32, 18, read=_iq4_nl),
    GgufFormat("IQ4_XS", 23, 256, 136, read=_iq4_xs),
    GgufFormat("BF16", 30, 1, 2, dtype="bfloat16"),
)
FORMATS = {row.name: row for row in _ROWS}
BY_ID = {row.id: row for row in _ROWS}
BLOCKS = {row.name: row for row in _ROWS if row.read is not None}
UNREAD = {
    **{9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S"},
    **{21: "IQ3_S", 22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"},
    **{29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4"},
}
"""Names of ggml's other encodings, for the refusal."""
