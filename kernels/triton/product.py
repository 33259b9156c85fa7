"""The matrix product of every kind of weight: `x @ weight.T`, of one weight or of the experts that rows were sent to.

One kernel. What differs is how a tile of the weight becomes numbers, by `FORM`:

| form | weight, per expert | product |
|---|---|---|
| `dense` | `[outputs, pitch]` in the dtype of `x` | as it is |
| `codes4`, `codes8` | int32 `[pitch / codes per word, outputs]` | codes widened in registers, then rounded |
| `float8` | bytes of e4m3 `[outputs, pitch]` | widened in registers, exactly, by bit arithmetic: runs on every device |
| `int8` | int8 `[outputs, pitch]` | int32 sums of codes of `x`: exact |
| `fp8` | e4m3 `[outputs, pitch]` | float32 sums of codes of `x`, on devices that multiply e4m3 |

A word of codes holds inputs that lie a sixteenth of a chunk apart, not neighbors: each shift of a tile of words is then
16 whole rows of a product, and no code ever moves between threads. Sums are float32 in ascending order of inputs; where
a product is split along its inputs, the parts are added in order, without atomics.
"""

from __future__ import annotations

import triton.language as tl

from kernels.triton.float8 import decode
from kernels.triton.launch import Block, Constant, Pointer, Schedule, device_function, i64, kernel

SUB = 16
"""Inputs that one shift of a tile of words gives: what one tensor core instruction multiplies."""
PARTS = {"codes4": 8, "codes8": 4}
"""Codes in a word."""
CHUNK = {"dense": 64, "codes4": SUB * 8, "codes8": SUB * 4, "float8": 128, "int8": 128, "fp8": 128}
"""Inputs of one step of the loop."""
WHOLE = tl.constexpr(0x4B000000)
"""Bits of 2^23: an integer below 2^23 in its low bits makes the float 2^23 + integer."""


@device_function
def from_codes(
    words: Block, part: tl.constexpr, scale: Block, offset: Block, BITS: tl.constexpr, OFFSET: tl.constexpr
) -> Block:
    """float32 `(code - zero) * scale`, or `code * scale + minimum`."""
    code = (words >> (BITS * part)) & ((1 << BITS) - 1)
    number = (code | WHOLE).to(tl.float32, bitcast=True)
    if OFFSET == "minimum":
        return (number - 8388608.0) * scale[None, :] + offset[None, :]
    if OFFSET == "zero":
        return (number - (8388608.0 + offset)[None, :]) * scale[None, :]
    return (number - (8388608.0 + (1 << (BITS - 1)))) * scale[None, :]


@kernel
def multiply(
    x: Pointer,
    weight: Pointer,
    scale: Pointer,
    offset: Pointer,
    x_scale: Pointer,
    bias: Pointer,
    shares: Pointer,
    order: Pointer,
    owners: Pointer,
    out: Pointer,
    rows: i64,
    FORM: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    PITCH: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    X_GROUPS: tl.constexpr,
    OFFSET: tl.constexpr,
    SHARED_BY: tl.constexpr,
    PARTS: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """Row r of the result is the product of row `r // SHARED_BY` of x. With `order`, a program takes the rows that are
    listed for its block (`rows` or more: none), and the weight is that of the block's owner (-1: nobody's)."""
    SUB: tl.constexpr = BLOCK_K // PARTS
    BITS: tl.constexpr = 32 // PARTS
    GROUPED: tl.constexpr = GROUPS > 1
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    CHUNKS: tl.constexpr = (INPUTS + BLOCK_K - 1) // BLOCK_K
    EACH: tl.constexpr = (CHUNKS + SPLITS - 1) // SPLITS
    first = split * EACH
    last = tl.minimum(first + EACH, CHUNKS)
    if order is not None:
        row = tl.load(order + row).to(tl.int64)
        owner = tl.load(owners + tl.program_id(0)).to(tl.int64)
        row = tl.where(owner >= 0, row, rows)
        last = tl.where(owner >= 0, last, first)
        owner = tl.maximum(owner, 0)
        if PARTS > 1:
            weight += owner * (PITCH // PARTS) * OUTPUTS
        else:
            weight += owner * PITCH * OUTPUTS
        if scale is not None:
            scale += owner * GROUPS * OUTPUTS
        if offset is not None:
            offset += owner * GROUPS * OUTPUTS
        if bias is not None:
            bias += owner * OUTPUTS
    valid = row < rows
    inside = n < OUTPUTS
    source = tl.where(valid, row // SHARED_BY, 0)
    sub = tl.arange(0, SUB)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.int32 if FORM == "int8" else tl.float32)
    for chunk in range(first, last):
        k0 = chunk * BLOCK_K
        if PARTS > 1:
            line = (chunk * SUB + sub).to(tl.int64)
            tile = tl.load(weight + line[:, None] * OUTPUTS + n[None, :], mask=inside[None, :], other=0)
        else:
            k = k0 + sub
            at = weight + n[None, :].to(tl.int64) * PITCH + k[:, None]
            tile = tl.load(at, mask=inside[None, :] & (k < INPUTS)[:, None], other=0.0)
        for part in tl.static_range(PARTS):
            k = k0 + part * SUB + sub
            a = tl.load(
                x + source[:, None] * INPUTS + k[None, :], mask=valid[:, None] & (k < INPUTS)[None, :], other=0.0
            )
            group = (k0 + part * SUB) // GROUP
            if PARTS > 1:
                known = inside & (group < GROUPS)
                s = tl.load(scale + group * OUTPUTS + n, mask=known, other=0.0).to(tl.float32)
                z = s
                if offset is not None:
                    z = tl.load(offset + group * OUTPUTS + n, mask=known, other=0.0).to(tl.float32)
                b = from_codes(tile, part, s, z, BITS, OFFSET).to(x.dtype.element_ty)
                acc = tl.dot(a, b, acc, input_precision="ieee")
            elif FORM == "int8":
                acc = tl.dot(a, tile, acc, out_dtype=tl.int32)
            elif GROUPED or X_GROUPS > 1:
                b = decode(tile).to(x.dtype.element_ty) if FORM == "float8" else tile
                partial = tl.dot(a, b, input_precision="ieee")
                if GROUPED:
                    partial *= tl.load(scale + group * OUTPUTS + n, mask=inside, other=0.0)[None, :]
                if X_GROUPS > 1:
                    partial *= tl.load(x_scale + source * X_GROUPS + group, mask=valid, other=0.0)[:, None]
                acc += partial
            else:
                b = decode(tile).to(x.dtype.element_ty) if FORM == "float8" else tile
                acc = tl.dot(a, b, acc, input_precision="ieee")
    value = acc.to(tl.float32)
    if x_scale is not None and X_GROUPS == 1:
        value *= tl.load(x_scale + source, mask=valid, other=0.0)[:, None]
    if PARTS == 1 and scale is not None and GROUPS == 1:
        value *= tl.load(scale + n, mask=inside, other=0.0)[None, :]
    if bias is not None:
        value += tl.where(split == 0, tl.load(bias + n, mask=inside, other=0.0).to(tl.float32), 0.0)[None, :]
    if shares is not None:
        value *= tl.load(shares + row, mask=valid, other=0.0)[:, None]
    to = out + (split * rows + row)[:, None] * OUTPUTS + n[None, :]
    tl.store(to, value.to(out.dtype.element_ty), mask=valid[:, None] & inside[None, :])


@kernel
def add_parts(
    parts: Pointer, out: Pointer, rows: i64, WIDTH: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """The parts of a split product, in order."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    total = tl.zeros([BLOCK], tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts + (split * rows + row) * WIDTH + column, mask=inside, other=0.0)
    tl.store(out + row * WIDTH + column, total.to(out.dtype.element_ty), mask=inside)


@kernel
def widen(
    weight: Pointer,
    scale: Pointer,
    offset: Pointer,
    out: Pointer,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    PITCH: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    OFFSET: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """A weight of codes in the dtype of `out [outputs, inputs]`, for the dense product of many rows."""
    SUB: tl.constexpr = BLOCK_K // PARTS
    BITS: tl.constexpr = 32 // PARTS
    chunk = tl.program_id(0)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = n < OUTPUTS
    sub = tl.arange(0, SUB)
    line = (chunk * SUB + sub).to(tl.int64)
    if PARTS > 1:
        tile = tl.load(weight + line[:, None] * OUTPUTS + n[None, :], mask=inside[None, :], other=0)
    else:
        at = weight + n[None, :].to(tl.int64) * PITCH + line[:, None]
        tile = tl.load(at, mask=inside[None, :] & (line < INPUTS)[:, None], other=0)
    for part in tl.static_range(PARTS):
        k = chunk * BLOCK_K + part * SUB + sub
        group = (chunk * BLOCK_K + part * SUB) // GROUP
        known = inside & (group < GROUPS)
        s = tl.load(scale + group * OUTPUTS + n, mask=known, other=0.0).to(tl.float32)
        z = s
        if offset is not None:
            z = tl.load(offset + group * OUTPUTS + n, mask=known, other=0.0).to(tl.float32)
        if PARTS > 1:
            b = from_codes(tile, part, s, z, BITS, OFFSET)
        else:
            b = decode(tile) * s[None, :]
        to = out + n[None, :].to(tl.int64) * INPUTS + k[:, None]
        tl.store(to, b.to(out.dtype.element_ty), mask=inside[None, :] & (k < INPUTS)[:, None])


def add_constants(outputs: int, splits: int) -> tuple[dict[str, Constant], Schedule]:
    return {"WIDTH": outputs, "SPLITS": splits, "BLOCK": 1024}, Schedule(num_warps=4, num_stages=1)
