"""Gemma 2 and Gemma 3 (text): norms on both sides of each block, GELU gates, layers with a sliding window.

Differences from Llama: the embedding is scaled by sqrt(hidden) and norm weights are stored minus one. Gemma 2 caps
attention scores and logits; Gemma 3 norms heads instead and gives its local layers a rotary base of their own.
Sources: arXiv 2408.00118, arXiv 2503.19786 and the published configurations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model_config import ModelConfig
from engine.models.activations import GATED, activation
from engine.models.decoder import DecoderShell, ForwardBatch
from engine.models.layers import (
    Attention,
    GatedBlock,
    RotaryTables,
    attend,
    feed_forward,
    load_attention,
    load_gated,
)
from engine.models.rope import rotary_tables
from engine.models.source import WeightSource
from kernels.contracts import KVCache

_OFFSET = 1.0


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: Tensor
    post_attention_norm: Tensor
    pre_feedforward_norm: Tensor
    post_feedforward_norm: Tensor
    attention: Attention
    mlp: GatedBlock


class Gemma3Model:
    qk_norm = True

    def __init__(self, config: ModelConfig, source: WeightSource) -> None:
        self.config, self._ops, self._device = config, source.ops, source.device
        self._activation = activation(GATED, config.hidden_activation)
        self._shell = DecoderShell(config, source, norm_offset=_OFFSET)
        # The scale is rounded to the model's precision, as in the reference implementation.
        self._embedding_scale = float(torch.tensor(config.hidden_size**0.5, dtype=source.dtype))
        self._layers = [self._load_layer(source, index) for index in range(config.num_layers)]
        self._caches: Sequence[KVCache] = ()
        self._rotary: tuple[RotaryTables, RotaryTables] | None = None
        self.last_norm, self.logits = self._shell.last_norm, self._shell.logits

    def bind(self, caches: Sequence[KVCache], max_positions: int) -> None:
        window = self.config.max_position_embeddings
        whole = RotaryTables(*rotary_tables(self.config.rope, window, max_positions, self._device))
        local = RotaryTables(*rotary_tables(self.config.local_rope, window, max_positions, self._device))
        self._caches, self._rotary = caches, (whole, local)

    def forward(self, batch: ForwardBatch) -> Tensor:
        assert self._rotary is not None, "bind() comes before forward()"
        whole, local = self._rotary
        hidden = self._shell.embed(batch.token_ids) * self._embedding_scale
        for layer, cache in zip(self._layers, self._caches, strict=True):
            rotary = whole if layer.attention.window is None else local
            normed = self._norm(hidden, layer.input_norm)
            mixed = attend(self._ops, self.config, layer.attention, normed, cache, rotary, batch)
            hidden = hidden + self._norm(mixed, layer.post_attention_norm)
            normed = self._norm(hidden, layer.pre_feedforward_norm)
            mixed = feed_forward(self._ops, layer.mlp, normed, self._activation)
            hidden = hidden + self._norm(mixed, layer.post_feedforward_norm)
        return batch.choose(hidden)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return self._ops.rms_norm(hidden, weight, self.config.norm_eps, _OFFSET)

    def _load_layer(self, source: WeightSource, index: int) -> _Layer:
        config, prefix = self.config, f"model.layers.{index}"

        def norm(name: str) -> Tensor:
            return source.vector(f"{prefix}.{name}.weight", config.hidden_size)

        return _Layer(
            input_norm=norm("input_layernorm"),
            post_attention_norm=norm("post_attention_layernorm"),
            pre_feedforward_norm=norm("pre_feedforward_layernorm"),
            post_feedforward_norm=norm("post_feedforward_layernorm"),
            attention=load_attention(source, config, index, qk_norm=self.qk_norm, norm_offset=_OFFSET),
            mlp=load_gated(
                source,
                (f"{prefix}.mlp.gate_proj", f"{prefix}.mlp.up_proj", f"{prefix}.mlp.down_proj"),
                config.hidden_size,
                config.intermediate_size,
            ),
        )


class Gemma2Model(Gemma3Model):
    qk_norm = False
