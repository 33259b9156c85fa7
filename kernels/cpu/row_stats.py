"""Evidence about each row of raw logits in two passes. Formula: `kernels/reference`."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.contracts import KernelError, RowStats
from kernels.cpu.library import is_bf16, lib, native, typed


def row_stats(logits: Tensor, token_ids: Tensor, topk: int = 0) -> RowStats:
    source, tokens = native(logits), typed("token_ids", token_ids, torch.int64)
    rows, vocab = source.shape
    topk = min(topk, vocab)
    values = torch.empty(4, rows, dtype=torch.float32)
    rank = torch.empty(rows, dtype=torch.int64)
    top_ids = torch.empty(rows, topk, dtype=torch.int64)
    top_logprobs = torch.empty(rows, topk, dtype=torch.float32)
    outputs = [x.data_ptr() for x in (values, rank, top_ids, top_logprobs)]
    if lib().esc_row_stats(source.data_ptr(), rows, vocab, tokens.data_ptr(), topk, *outputs, is_bf16(source)):
        raise KernelError(f"row_stats: token ids span [{int(tokens.min())}, {int(tokens.max())}], vocabulary {vocab}")
    return RowStats(values[0], values[1], values[2], values[3], rank, top_ids, top_logprobs)
