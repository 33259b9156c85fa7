"""One draw per row without sorting the vocabulary: candidates above a floor, a histogram, one sorted bucket."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.contracts import KernelError
from kernels.cpu.library import is_bf16, lib, native, typed


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniforms: Tensor
) -> Tensor:
    source = native(logits)
    rows, vocab = source.shape
    parameters = [
        typed("temperature", temperature, torch.float32),
        typed("top_k", top_k, torch.int32),
        typed("top_p", top_p, torch.float32),
        typed("min_p", min_p, torch.float32),
        typed("uniforms", uniforms, torch.float64),
    ]
    if any(p.shape[0] != rows for p in parameters):
        raise KernelError(f"sample: {rows} rows, parameters of {[p.shape[0] for p in parameters]}")
    ids = torch.empty(rows, dtype=torch.int64)
    pointers = [p.data_ptr() for p in parameters]
    lib().esc_sample(source.data_ptr(), rows, vocab, *pointers, ids.data_ptr(), is_bf16(source))
    return ids
