"""Qwen 2 and 2.5 (biased q, k, v) and Qwen 3 (normed heads): Llama's layers with one switch each."""

from __future__ import annotations

from engine.models.llama import LlamaModel


class Qwen2Model(LlamaModel):
    qkv_bias = True


class Qwen3Model(LlamaModel):
    qk_norm = True
