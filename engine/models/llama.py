"""Llama, Mistral and SmolLM; with two switches also the base of Qwen. Pre-norm layers that run as one fused stack."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from engine.model_config import ModelConfig
from engine.models.activations import GATED, activation
from engine.models.decoder import DecoderShell, ForwardBatch
from engine.models.rope import rotary_tables
from engine.models.source import WeightSource
from kernels.contracts import DecoderLayer, DecoderStack, KVCache, PackedLinear


class LlamaModel:
    """`qkv_bias` and `qk_norm` are what Qwen 2 and Qwen 3 add."""

    qkv_bias = False
    qk_norm = False

    def __init__(self, config: ModelConfig, source: WeightSource) -> None:
        self.config, self._ops, self._device = config, source.ops, source.device
        self._shell = DecoderShell(config, source)
        self._layers = [self._load_layer(source, index) for index in range(config.num_layers)]
        self._stack: DecoderStack | None = None
        self.last_norm, self.logits = self._shell.last_norm, self._shell.logits

    @property
    def layers(self) -> Sequence[DecoderLayer]:
        return self._layers

    def embed(self, token_ids: Tensor) -> Tensor:
        return self._shell.embed(token_ids)

    def bind(self, caches: Sequence[KVCache], max_positions: int) -> None:
        cos, sin = rotary_tables(self.config.rope, self.config.max_position_embeddings, max_positions, self._device)
        self._stack = self._ops.pack_stack(self._layers, caches, cos, sin)

    def forward(self, batch: ForwardBatch) -> Tensor:
        assert self._stack is not None, "bind() comes before forward()"
        hidden, residual = self._ops.decoder_stack(
            self._shell.embed(batch.token_ids),
            self._stack,
            batch.plan,
            batch.positions,
            batch.slot_mapping,
            batch.wanted,
        )
        return hidden.add_(residual)

    def _load_layer(self, source: WeightSource, index: int) -> DecoderLayer:
        config, prefix = self.config, f"model.layers.{index}"
        hidden, dim = config.hidden_size, config.head_dim
        return DecoderLayer(
            input_norm=source.vector(f"{prefix}.input_layernorm.weight", hidden),
            post_attention_norm=source.vector(f"{prefix}.post_attention_layernorm.weight", hidden),
            qkv=self._load_qkv(source, prefix),
            o=source.linear(
                [(f"{prefix}.self_attn.o_proj", hidden)], config.num_heads * dim, config.attention_bias and self._o_bias
            ),
            gate_up=self._load_gate_up(source, prefix),
            down=source.linear([(f"{prefix}.mlp.down_proj", hidden)], config.intermediate_size),
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=dim,
            eps=config.norm_eps,
            scale=config.attention_scale,
            q_norm=source.vector(f"{prefix}.self_attn.q_norm.weight", dim) if self.qk_norm else None,
            k_norm=source.vector(f"{prefix}.self_attn.k_norm.weight", dim) if self.qk_norm else None,
            window=config.layer_windows[index],
            softcap=config.attention_softcap,
            activation=activation(GATED, config.hidden_activation),
        )

    @property
    def _o_bias(self) -> bool:
        """Qwen 2 biases q, k and v only; Llama's `attention_bias` covers the output as well."""
        return not self.qkv_bias

    def _load_qkv(self, source: WeightSource, prefix: str) -> PackedLinear:
        config, dim = self.config, self.config.head_dim
        parts = [
            (f"{prefix}.self_attn.q_proj", config.num_heads * dim),
            (f"{prefix}.self_attn.k_proj", config.num_kv_heads * dim),
            (f"{prefix}.self_attn.v_proj", config.num_kv_heads * dim),
        ]
        return source.linear(parts, config.hidden_size, bias=self.qkv_bias or config.attention_bias)

    def _load_gate_up(self, source: WeightSource, prefix: str) -> PackedLinear:
        size = self.config.intermediate_size
        return source.linear(
            [(f"{prefix}.mlp.gate_proj", size), (f"{prefix}.mlp.up_proj", size)], self.config.hidden_size
        )
