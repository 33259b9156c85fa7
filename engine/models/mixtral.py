"""Mixtral and Qwen3-MoE: Llama's attention, a router and experts in place of the feed-forward block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from engine.errors import UnsupportedModel
from engine.model_config import ModelConfig, MoeParameters
from engine.models.activations import GATED, activation
from engine.models.decoder import DecoderShell, ForwardBatch
from engine.models.layers import (
    Attention,
    ExpertBlock,
    GatedBlock,
    RotaryTables,
    attend,
    feed_forward,
    load_attention,
    load_gated,
    mix_experts,
)
from engine.models.rope import rotary_tables
from engine.models.source import WeightSource
from kernels.contracts import KVCache


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: Tensor
    post_attention_norm: Tensor
    attention: Attention
    mlp: ExpertBlock | GatedBlock


class MixtralModel:
    """Subclasses name the tensors: the block's name, and gate, up and down within an expert."""

    block = "block_sparse_moe"
    expert_parts = ("w1", "w3", "w2")
    qk_norm = False

    def __init__(self, config: ModelConfig, source: WeightSource) -> None:
        if config.moe is None:
            raise UnsupportedModel(f"the configuration of {config.architecture} names no experts")
        self.config, self._ops, self._device = config, source.ops, source.device
        self._moe: MoeParameters = config.moe
        self._activation = activation(GATED, config.hidden_activation)
        self._shell = DecoderShell(config, source)
        self._layers = [self._load_layer(source, index) for index in range(config.num_layers)]
        self._caches: Sequence[KVCache] = ()
        self._rotary: RotaryTables | None = None
        self.last_norm, self.logits = self._shell.last_norm, self._shell.logits

    def bind(self, caches: Sequence[KVCache], max_positions: int) -> None:
        tables = rotary_tables(self.config.rope, self.config.max_position_embeddings, max_positions, self._device)
        self._caches, self._rotary = caches, RotaryTables(*tables)

    def forward(self, batch: ForwardBatch) -> Tensor:
        assert self._rotary is not None, "bind() comes before forward()"
        ops, config = self._ops, self.config
        residual = self._shell.embed(batch.token_ids)
        mixed: Tensor | None = None
        for layer, cache in zip(self._layers, self._caches, strict=True):
            if mixed is None:
                normed = ops.rms_norm(residual, layer.input_norm, config.norm_eps)
            else:
                normed, residual = ops.add_rms_norm(mixed, residual, layer.input_norm, config.norm_eps)
            mixed = attend(ops, config, layer.attention, normed, cache, self._rotary, batch)
            normed, residual = ops.add_rms_norm(mixed, residual, layer.post_attention_norm, config.norm_eps)
            mixed = self._feed_forward(layer, normed)
        return batch.choose(residual if mixed is None else residual + mixed)

    def _feed_forward(self, layer: _Layer, normed: Tensor) -> Tensor:
        if isinstance(layer.mlp, GatedBlock):
            return feed_forward(self._ops, layer.mlp, normed, self._activation)
        return mix_experts(self._ops, layer.mlp, normed, self._moe, self._activation)

    def _load_layer(self, source: WeightSource, index: int) -> _Layer:
        prefix, hidden = f"model.layers.{index}", self.config.hidden_size
        return _Layer(
            input_norm=source.vector(f"{prefix}.input_layernorm.weight", hidden),
            post_attention_norm=source.vector(f"{prefix}.post_attention_layernorm.weight", hidden),
            attention=load_attention(source, self.config, index, qk_norm=self.qk_norm),
            mlp=self._load_mlp(source, prefix, index),
        )

    def _load_mlp(self, source: WeightSource, prefix: str, index: int) -> ExpertBlock | GatedBlock:
        hidden = self.config.hidden_size
        if index in self._moe.dense_layers:
            dense = (f"{prefix}.mlp.gate_proj", f"{prefix}.mlp.up_proj", f"{prefix}.mlp.down_proj")
            return load_gated(source, dense, hidden, self.config.intermediate_size)
        names = [
            tuple(f"{prefix}.{self.block}.experts.{expert}.{part}" for part in self.expert_parts)
            for expert in range(self._moe.num_experts)
        ]
        experts = source.experts(names, hidden, self._moe.intermediate_size)
        router = source.dense_linear(f"{prefix}.{self.block}.gate", self._moe.num_experts, hidden)
        return ExpertBlock(router, experts)


class Qwen3MoeModel(MixtralModel):
    block = "mlp"
    expert_parts = ("gate_proj", "up_proj", "down_proj")
    qk_norm = True
