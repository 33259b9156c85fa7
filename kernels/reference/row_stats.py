"""Evidence about each row of raw logits: log-probability, entropy, margin, rank, the most likely tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.contracts import RowStats


def row_stats(logits: Tensor, token_ids: Tensor, topk: int = 0) -> RowStats:
    wide = logits.float()
    logprobs = torch.log_softmax(wide, dim=-1)
    probabilities = logprobs.exp()
    chosen = wide.gather(1, token_ids.unsqueeze(1))
    entropy = -torch.where(probabilities > 0, probabilities * logprobs, 0.0).sum(dim=-1)
    two = probabilities.topk(2, dim=-1).values
    order = torch.sort(wide, dim=-1, descending=True, stable=True).indices[:, :topk]
    return RowStats(
        logprob=logprobs.gather(1, token_ids.unsqueeze(1)).squeeze(1),
        logsumexp=torch.logsumexp(wide, dim=-1),
        entropy=entropy,
        margin=two[:, 0] - two[:, 1],
        rank=(wide > chosen).sum(dim=-1) + 1,
        top_ids=order,
        top_logprobs=logprobs.gather(1, order),
    )
