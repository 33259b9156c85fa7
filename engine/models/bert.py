"""BERT-family sentence encoders: post-norm layers that see both directions. No cache, no positions beyond a table.

Owns the layers only; batching, pooling and unit length are `engine.execution.embedder`'s. Source: arXiv 1810.04805.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.model_config import ModelConfig
from engine.models.activations import PLAIN, activation
from engine.models.source import WeightSource
from kernels.contracts import PackedLinear

ARCHITECTURES = frozenset({"BertModel"})


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: Tensor
    bias: Tensor


@dataclass(frozen=True, slots=True)
class _Layer:
    qkv: PackedLinear
    out: PackedLinear
    attention_norm: _Norm
    up: PackedLinear
    down: PackedLinear
    output_norm: _Norm


class BertEncoder:
    """Raises WeightsMismatch for a missing or unused tensor."""

    def __init__(self, source: WeightSource) -> None:
        checkpoint = source.checkpoint
        self.config: ModelConfig = checkpoint.config
        self._ops, self._source = source.ops, source
        # BERT's configurations that name none mean exact GELU, where decoders mean SiLU.
        self._activation = activation(PLAIN, str(checkpoint.raw_config.get("hidden_act") or "gelu"))
        checkpoint.ignore("position_ids", "pooler.dense.weight", "pooler.dense.bias")
        hidden, prefix = self.config.hidden_size, "bert." if "bert.embeddings.LayerNorm.bias" in checkpoint else ""
        kinds = int(checkpoint.raw_config.get("type_vocab_size", 2))
        embeddings = f"{prefix}embeddings"
        words, places = self.config.vocab_size, self.config.max_position_embeddings
        self._words = self._table(f"{embeddings}.word_embeddings", words)
        # All tokens are of the first kind, so its row joins the positions once.
        kind = self._table(f"{embeddings}.token_type_embeddings", kinds)[0]
        self._positions = self._table(f"{embeddings}.position_embeddings", places) + kind
        self._norm = self._load_norm(f"{embeddings}.LayerNorm", hidden)
        self._layers = [self._load_layer(f"{prefix}encoder.layer.{i}") for i in range(self.config.num_layers)]
        checkpoint.finish()

    def forward(self, token_ids: Tensor, lengths: Tensor) -> Tensor:
        """`token_ids` int64 [batch, longest], padded at the end -> hidden states [batch, longest, hidden]."""
        batch, longest = token_ids.shape
        config = self.config
        real = torch.arange(longest, device=token_ids.device) < lengths[:, None]
        mask = real[:, None, None, :]
        hidden = self._words[token_ids] + self._positions[:longest]
        x = self._apply_norm(hidden.flatten(0, 1), self._norm)
        for layer in self._layers:
            fused = self._ops.linear(x, layer.qkv).view(batch, longest, 3, config.num_heads, config.head_dim)
            q, k, v = fused.permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            mixed = self._ops.linear(mixed.transpose(1, 2).reshape(batch * longest, -1), layer.out)
            x = self._apply_norm(x + mixed, layer.attention_norm)
            inner = self._activation(self._ops.linear(x, layer.up))
            x = self._apply_norm(x + self._ops.linear(inner, layer.down), layer.output_norm)
        return x.view(batch, longest, -1)

    def _apply_norm(self, x: Tensor, norm: _Norm) -> Tensor:
        return self._ops.layer_norm(x, norm.weight, norm.bias, self.config.norm_eps)

    def _table(self, name: str, rows: int) -> Tensor:
        source = self._source
        table = source.checkpoint.take(f"{name}.weight", (rows, self.config.hidden_size), source.dtype)
        return table.to(source.device)

    def _load_norm(self, name: str, size: int) -> _Norm:
        return _Norm(self._source.vector(f"{name}.weight", size), self._source.vector(f"{name}.bias", size))

    def _load_layer(self, prefix: str) -> _Layer:
        hidden, inner, linear = self.config.hidden_size, self.config.intermediate_size, self._source.linear
        names = [f"{prefix}.attention.self.{part}" for part in ("query", "key", "value")]
        return _Layer(
            qkv=linear([(name, hidden) for name in names], hidden, bias=True),
            out=linear([(f"{prefix}.attention.output.dense", hidden)], hidden, bias=True),
            attention_norm=self._load_norm(f"{prefix}.attention.output.LayerNorm", hidden),
            up=linear([(f"{prefix}.intermediate.dense", inner)], hidden, bias=True),
            down=linear([(f"{prefix}.output.dense", hidden)], inner, bias=True),
            output_norm=self._load_norm(f"{prefix}.output.LayerNorm", hidden),
        )
