"""Penalties of tokens that were seen: repetition, frequency, presence; a few ids of each row that has any."""

from __future__ import annotations

import torch
from torch import Tensor


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
    sizes = starts[1:] - starts[:-1]
    # With the size of the result known, a device need not be asked for it.
    owner = torch.arange(rows.shape[0], device=ids.device).repeat_interleave(sizes, output_size=ids.shape[0])
    where = (rows[owner], ids)
    values, factor = logits[where], repetition[owner]
    values = torch.where(values > 0, values / factor, values * factor)
    logits[where] = values - frequency[owner] * times - presence[owner] * (times > 0)
