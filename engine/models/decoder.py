"""The shell of every decoder: embedding, a stack of layers, a last norm, a head. Families fill in the layers.

Owns the order of one forward pass and the binding of layers to caches and rotary tables. Stateless between calls;
knows tensors and blocks, not sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.model_config import ModelConfig
from engine.models.source import WeightSource
from kernels.contracts import AttentionPlan, KVCache, PackedLinear, Weight


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One step in tensors: int64 `token_ids`, `positions`, `slot_mapping` [rows] and the plan shared by all layers."""

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    plan: AttentionPlan
    wanted: Tensor | None = None
    """Ascending rows (int64) whose hidden states are asked for; None for all."""

    def choose(self, hidden: Tensor) -> Tensor:
        return hidden if self.wanted is None else hidden[self.wanted]


class Decoder(Protocol):
    """A loaded model. `bind` once before the first `forward`."""

    config: ModelConfig

    def bind(self, caches: Sequence[KVCache], max_positions: int) -> None:
        """Attach one cache per layer and make rotary tables for positions below `max_positions`."""
        ...

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Write the step's keys and values; hidden states of the wanted rows before the last norm, [wanted, hidden]."""
        ...

    def last_norm(self, hidden: Tensor) -> Tensor: ...

    def logits(self, normed: Tensor) -> Tensor:
        """float32 [rows, vocab], valid until the next call: the memory is used again."""
        ...


class DecoderShell:
    """Embedding, last norm and head, the same in all families."""

    def __init__(self, config: ModelConfig, source: WeightSource, *, norm_offset: float = 0.0) -> None:
        self.config, self.ops = config, source.ops
        self.dtype, self._norm_offset = source.dtype, norm_offset
        vocab, hidden = config.vocab_size, config.hidden_size
        self.table: Weight = source.matrix("model.embed_tokens.weight", vocab, hidden)
        self.norm = source.vector("model.norm.weight", hidden)
        self.head = self._load_head(source)
        self._logits = torch.empty(0, config.vocab_size)

    def _load_head(self, source: WeightSource) -> PackedLinear:
        vocab, hidden = self.config.vocab_size, self.config.hidden_size
        if self.config.tie_word_embeddings:
            source.checkpoint.ignore("lm_head.weight")
            return source.pack([self.table])
        return source.linear([("lm_head", vocab)], hidden)

    def embed(self, token_ids: Tensor) -> Tensor:
        return self.ops.embedding(token_ids, self.table, self.dtype)

    def last_norm(self, hidden: Tensor) -> Tensor:
        return self.ops.rms_norm(hidden, self.norm, self.config.norm_eps, self._norm_offset)

    def logits(self, normed: Tensor) -> Tensor:
        rows = normed.shape[0]
        if rows > self._logits.shape[0] or self._logits.device != normed.device:
            self._logits = torch.empty(rows, self.config.vocab_size, device=normed.device)
        logits = self.ops.linear(normed, self.head, out_dtype=torch.float32, out=self._logits[:rows])
        cap = self.config.logits_softcap
        return logits if cap is None else (logits / cap).tanh_().mul_(cap)


def split_qkv(fused: Tensor, config: ModelConfig) -> tuple[Tensor, Tensor, Tensor]:
    """[rows, (heads + 2 kv_heads) * dim] -> q [rows, heads, dim], k and v [rows, kv_heads, dim], contiguous."""
    dim, heads, kv_heads = config.head_dim, config.num_heads, config.num_kv_heads
    q, k, v = torch.split(fused, [heads * dim, kv_heads * dim, kv_heads * dim], dim=1)
    return q.reshape(-1, heads, dim), k.reshape(-1, kv_heads, dim), v.reshape(-1, kv_heads, dim)
