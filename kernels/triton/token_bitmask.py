"""Forbid tokens by a packed bit mask, in place: one program a masked row and a piece of the vocabulary."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.contracts import KernelError
from kernels.triton.greedy import vocabulary_constants
from kernels.triton.launch import Pointer, aligned, i64, kernel, launch

PIECE = 8192


@kernel
def forbid_tokens(
    logits: Pointer,
    bitmask: Pointer,
    rows: Pointer,
    words: i64,
    height: i64,
    STRIDE: tl.constexpr,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    masked = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + masked).to(tl.int64)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    # Words beyond the mask forbid the rest of a padded vocabulary.
    word = tl.load(bitmask + masked * words + ids // 32, mask=ids // 32 < words, other=0)
    forbidden = ((word >> (ids % 32)) & 1) == 0
    inside = (ids < VOCABULARY) & (row >= 0) & (row < height)
    nothing = tl.full([BLOCK], float("-inf"), tl.float32).to(logits.dtype.element_ty)
    tl.store(logits + row * STRIDE + ids, nothing, mask=forbidden & inside)


def apply_token_bitmask(logits: Tensor, bitmask: Tensor, rows: Tensor) -> None:
    """A row outside of the logits raises where rows are on the host, and is passed over where they are on a device."""
    if logits.stride(-1) != 1:
        raise KernelError("apply_token_bitmask: ids of a row must lie side by side, they are changed in place")
    height, vocabulary = logits.shape
    if rows.numel() and rows.device.type == "cpu" and not 0 <= int(rows.min()) <= int(rows.max()) < height:
        raise KernelError(f"apply_token_bitmask: a row lies outside the {height} rows of logits")
    constants, schedule = vocabulary_constants(vocabulary, logits.stride(0), PIECE)
    launch(
        forbid_tokens,
        (rows.shape[0], triton.cdiv(vocabulary, int(constants["BLOCK"] or 1))),
        {
            "logits": logits, "bitmask": aligned(bitmask), "rows": aligned(rows),
            "words": bitmask.shape[1], "height": height,
        },
        constants,
        schedule,
    )  # fmt: skip
