"""Architecture name -> model class. The error lists what is supported."""

from __future__ import annotations

from collections.abc import Callable

from engine.errors import UnsupportedModel
from engine.model_config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.gemma import Gemma2Model, Gemma3Model
from engine.models.llama import LlamaModel
from engine.models.mixtral import MixtralModel, Qwen3MoeModel
from engine.models.phi import Phi3Model
from engine.models.qwen import Qwen2Model, Qwen3Model
from engine.models.source import WeightSource

_MODELS: dict[str, Callable[[ModelConfig, WeightSource], Decoder]] = {
    "LlamaForCausalLM": LlamaModel,
    "MistralForCausalLM": LlamaModel,
    "Qwen2ForCausalLM": Qwen2Model,
    "Qwen3ForCausalLM": Qwen3Model,
    "Qwen3MoeForCausalLM": Qwen3MoeModel,
    "MixtralForCausalLM": MixtralModel,
    "Gemma2ForCausalLM": Gemma2Model,
    "Gemma3ForCausalLM": Gemma3Model,
    "Phi3ForCausalLM": Phi3Model,
}


def supported_architectures() -> tuple[str, ...]:
    return tuple(sorted(_MODELS))


def builder_of(architecture: str) -> Callable[[ModelConfig, WeightSource], Decoder]:
    """Raises UnsupportedModel for an unknown architecture."""
    if architecture not in _MODELS:
        raise UnsupportedModel(
            f"architecture {architecture[:80]!r} is not supported",
            hint=f"supported: {', '.join(supported_architectures())}",
        )
    return _MODELS[architecture]


def load_model(source: WeightSource) -> Decoder:
    """Build the decoder that the checkpoint names and fill it.

    Raises UnsupportedModel for an unknown architecture, WeightsMismatch for a missing, misshapen or unused tensor.
    """
    config = source.checkpoint.config
    build = builder_of(config.architecture)
    source.checkpoint.ignore(".rotary_emb.inv_freq")
    model = build(config, source)
    source.checkpoint.finish()
    return model
