"""float8 e4m3 by bit arithmetic: the same on every GPU, sm_80 included, where Triton has no such type."""

from __future__ import annotations

import triton.language as tl

from kernels.triton.launch import Block, device_function

UP = tl.constexpr(1.329227995784916e36)
"""2^120: the code's exponent shifted under that of float32 is smaller by it."""
LARGEST = tl.constexpr(448.0)


@device_function
def decode(codes: Block) -> Block:
    """float32 of uint8 codes."""
    wide = codes.to(tl.int32)
    bits = ((wide & 0x7F) << 20) | ((wide & 0x80) << 24)
    return bits.to(tl.float32, bitcast=True) * UP


@device_function
def encode(values: Block) -> Block:
    """uint8 codes of float32 values: clamped to 448, rounded to the nearest even."""
    bits = values.to(tl.int32, bitcast=True)
    magnitude = tl.minimum(tl.abs(values), LARGEST)
    raw = magnitude.to(tl.int32, bitcast=True)
    normal = ((raw + 0x7FFFF + ((raw >> 20) & 1)) >> 20) - 960
    # Below 2^-6 the codes are multiples of 2^-9; adding 2^23 rounds to a whole number of them.
    small = ((magnitude * 512.0 + 8388608.0) - 8388608.0).to(tl.int32)
    code = tl.where(magnitude < 0.015625, small, normal)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)
