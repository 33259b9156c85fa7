"""Forbid tokens by a packed bit mask, in place. Formula: `kernels/reference`."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.contracts import KernelError
from kernels.cpu.library import is_bf16, lib, typed


def apply_token_bitmask(logits: Tensor, bitmask: Tensor, rows: Tensor) -> None:
    mask, where = typed("bitmask", bitmask, torch.int32), typed("rows", rows, torch.int64)
    if not logits.is_contiguous():
        raise KernelError("apply_token_bitmask: logits must be contiguous, they are changed in place")
    failed = lib().esc_token_bitmask(
        logits.data_ptr(),
        logits.shape[1],
        logits.shape[0],
        mask.data_ptr(),
        mask.shape[1],
        where.data_ptr(),
        where.shape[0],
        is_bf16(logits),
    )
    if failed:
        raise KernelError(f"apply_token_bitmask: a row lies outside the {logits.shape[0]} rows of logits")
