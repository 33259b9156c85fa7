"""The most likely token of each row and its log-probability, in two passes over the row."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.library import is_bf16, lib, native


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    source = native(logits)
    rows, vocab = source.shape
    ids, logprobs = torch.empty(rows, dtype=torch.int64), torch.empty(rows, dtype=torch.float32)
    lib().esc_greedy(source.data_ptr(), rows, vocab, ids.data_ptr(), logprobs.data_ptr(), is_bf16(source))
    return ids, logprobs
