"""`FloatWeight` codes (FP8 e4m3) in the panels of `csrc/linear.h`, one byte a weight. Activations stay float32."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.contracts import FloatWeight
from kernels.cpu.integer_weights import KINDS, MEMORY, PANEL, panels
from kernels.cpu.library import LinearStruct

STEP = 4
"""Codes in a 32-bit lane: tiles of scales are multiples of it wide."""


def native_tiles(weights: Sequence[FloatWeight]) -> bool:
    """Whether the kernels run these stacked weights: tiles of one width, in whole lanes."""
    widths = {None if weight.block is None else weight.block[1] for weight in weights}
    width = widths.pop()
    return not widths and (width is None or width % STEP == 0)


def pack_floats(weights: Sequence[FloatWeight], struct: LinearStruct) -> tuple[Tensor, ...]:
    """Fill `struct` and return the tensors that it points to."""
    block, rows, inputs = weights[0].block, panels(struct.n) * PANEL, -(-struct.k // STEP) * STEP
    group = inputs if block is None else min(block[1], inputs)
    groups = -(-struct.k // group)
    packed = MEMORY.zeros(rows * inputs, torch.uint8)
    scale = torch.zeros(rows, groups)
    # [panel][k/4][32][4]
    into = packed.view(-1, inputs // STEP, PANEL, STEP)
    row = 0
    for weight in weights:
        codes = F.pad(weight.codes.view(torch.uint8), (0, inputs - struct.k))
        _place(codes.view(weight.out_features, -1, STEP), row, into)
        scales = weight.scale
        if weight.block is not None:
            scales = scales.repeat_interleave(weight.block[0], dim=0)[: weight.out_features]
        scale[row : row + weight.out_features] = scales
        row += weight.out_features
    struct.kind, struct.group, struct.weight = KINDS["float8"], group, packed.data_ptr()
    interleaved = scale.view(-1, PANEL, groups).transpose(1, 2).contiguous()
    struct.scale = interleaved.data_ptr()
    return packed, interleaved


def _place(codes: Tensor, row: int, into: Tensor) -> None:
    """`codes [rows, k/4, 4]` to the rows of panels from `row` on."""
    done = 0
    while done < codes.shape[0]:
        panel, lane = divmod(row + done, PANEL)
        count = min(PANEL - lane, codes.shape[0] - done)
        if lane == 0 and codes.shape[0] - done >= PANEL:
            count = (codes.shape[0] - done) // PANEL * PANEL
            whole = codes[done : done + count].view(-1, PANEL, codes.shape[1], STEP)
            into[panel : panel + count // PANEL] = whole.transpose(1, 2)
        else:
            into[panel, :, lane : lane + count] = codes[done : done + count].transpose(0, 1)
        done += count
