"""Philox4x32-10. Formula: `kernels/reference`."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.library import lib, typed


def philox_uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    keys, counters = typed("seeds", seeds, torch.int64), typed("positions", positions, torch.int64)
    out = torch.empty(keys.shape[0], dtype=torch.float64)
    lib().esc_philox(keys.data_ptr(), counters.data_ptr(), out.data_ptr(), keys.shape[0])
    return out
