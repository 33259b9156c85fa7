"""Rotary position embedding in place. Formula: `kernels/reference`."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.contracts import KernelError
from kernels.cpu.library import is_bf16, lib, native, typed


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
    half = cos.shape[1]
    if 2 * half > q.shape[-1]:
        raise KernelError(f"rope: tables rotate {2 * half} dimensions, heads have {q.shape[-1]}")
    rows, heads, dim = q.shape
    turned_q, turned_k = native(q), native(k)
    cosines, sines = typed("cos", cos, torch.float32), typed("sin", sin, torch.float32)
    where = typed("positions", positions, torch.int64)
    failed = lib().esc_rope(
        turned_q.data_ptr(),
        turned_k.data_ptr(),
        cosines.data_ptr(),
        sines.data_ptr(),
        where.data_ptr(),
        rows,
        heads,
        k.shape[1],
        dim,
        half,
        cos.shape[0],
        is_bf16(turned_q),
    )
    if failed:
        raise KernelError(f"rope: positions span [{int(where.min())}, {int(where.max())}], tables have {cos.shape[0]}")
    for x, turned in ((q, turned_q), (k, turned_k)):
        if turned.data_ptr() != x.data_ptr():
            x.copy_(turned)
