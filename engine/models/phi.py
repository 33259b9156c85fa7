"""Phi-3 and Phi-3.5: Llama's layers whose checkpoints already hold the fused matrices; partial and long RoPE."""

from __future__ import annotations

from engine.models.llama import LlamaModel
from engine.models.source import WeightSource
from kernels.contracts import PackedLinear


class Phi3Model(LlamaModel):
    def _load_qkv(self, source: WeightSource, prefix: str) -> PackedLinear:
        config = self.config
        rows = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        return source.linear([(f"{prefix}.self_attn.qkv_proj", rows)], config.hidden_size)

    def _load_gate_up(self, source: WeightSource, prefix: str) -> PackedLinear:
        config = self.config
        return source.linear([(f"{prefix}.mlp.gate_up_proj", 2 * config.intermediate_size)], config.hidden_size)
