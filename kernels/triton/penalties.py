"""Penalties of tokens that were seen, in place: a few programs for each row that has any. Formula: the reference."""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from kernels.contracts import KernelError
from kernels.triton.launch import Constant, Pointer, Schedule, aligned, i64, kernel, launch

BLOCK = 512
PIECES = 8
"""Programs that share a row's tokens."""


@kernel
def penalize_tokens(
    logits: Pointer,
    rows: Pointer,
    starts: Pointer,
    ids: Pointer,
    times: Pointer,
    repetition: Pointer,
    frequency: Pointer,
    presence: Pointer,
    height: i64,
    STRIDE: tl.constexpr,
    VOCABULARY: tl.constexpr,
    PIECES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    owner = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + owner).to(tl.int64)
    first, end = tl.load(starts + owner), tl.load(starts + owner + 1)
    factor = tl.load(repetition + owner)
    each, once = tl.load(frequency + owner), tl.load(presence + owner)
    for start in range(first + tl.program_id(1) * BLOCK, end, PIECES * BLOCK):
        place = start + tl.arange(0, BLOCK)
        token = tl.load(ids + place, mask=place < end, other=-1)
        known = (place < end) & (token >= 0) & (token < VOCABULARY) & (row >= 0) & (row < height)
        count = tl.load(times + place, mask=known, other=0.0)
        at = logits + row * STRIDE + token
        value = tl.load(at, mask=known, other=0.0).to(tl.float32)
        value = tl.where(value > 0.0, tl.div_rn(value, factor), value * factor)
        value = value - each * count - tl.where(count > 0.0, once, 0.0)
        tl.store(at, value.to(logits.dtype.element_ty), mask=known)


def penalty_constants(vocabulary: int, stride: int) -> tuple[dict[str, Constant], Schedule]:
    constants: dict[str, Constant] = {"STRIDE": stride, "VOCABULARY": vocabulary, "PIECES": PIECES, "BLOCK": BLOCK}
    return constants, Schedule(num_warps=4, num_stages=1)


def apply_penalties(
    logits: Tensor,
    rows: Tensor,
    starts: Tensor,
    ids: Tensor,
    times: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
) -> None:
    """Ids and rows outside of the logits are passed over: to look at those of a device would stop its stream."""
    if logits.stride(-1) != 1:
        raise KernelError("apply_penalties: ids of a row must lie side by side, they are changed in place")
    constants, schedule = penalty_constants(logits.shape[1], logits.stride(0))
    launch(
        penalize_tokens,
        (rows.shape[0], PIECES),
        {
            "logits": logits, "rows": aligned(rows), "starts": aligned(starts), "ids": aligned(ids),
            "times": aligned(times), "repetition": aligned(repetition), "frequency": aligned(frequency),
            "presence": aligned(presence), "height": logits.shape[0],
        },
        constants,
        schedule,
    )  # fmt: skip
