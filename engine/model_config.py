"""A decoder's hyper-parameters as one frozen value, read from a Hugging Face `config.json`.

Owns the reading of old and new spellings (`rope_scaling` and `rope_parameters`, `sliding_window` and `layer_types`).
GGUF metadata is first turned into the same dictionary by `engine.weights.gguf`. Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import UnsupportedModel

_WINDOW_PATTERNS = {"Gemma2ForCausalLM": 2, "Gemma3ForCausalLM": 6}
"""Every n-th layer sees everything, where the configuration does not list the layers."""
_ROPE_COMMON = frozenset({"rope_theta", "rope_type", "type", "partial_rotary_factor"})
_MOST = {
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 20,
    "intermediate_size": 1 << 24,
    "num_hidden_layers": 1 << 12,
    "num_attention_heads": 1 << 12,
    "num_key_value_heads": 1 << 12,
    "head_dim": 1 << 14,
    "max_position_embeddings": 1 << 24,
    "num_experts": 1 << 12,
}
"""Beyond any model that exists: a damaged or hostile file must not make us allocate for a billion layers."""


@dataclass(frozen=True, slots=True)
class RopeParameters:
    """Rotary embedding of one kind of layer. `extra` holds the numbers of the scaling scheme by their public names."""

    theta: float
    rotary_dim: int
    kind: str = "default"
    extra: tuple[tuple[str, Any], ...] = ()

    def get(self, name: str, default: Any = None) -> Any:
        return dict(self.extra).get(name, default)


@dataclass(frozen=True, slots=True)
class MoeParameters:
    num_experts: int
    experts_per_token: int
    intermediate_size: int
    normalize_weights: bool
    dense_layers: frozenset[int] = frozenset()
    """Layers with an ordinary feed-forward block."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes in elements, windows in tokens. `layer_windows[i]` is None where layer i sees everything before it."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    rope: RopeParameters
    local_rope: RopeParameters
    """Rotary embedding of the sliding-window layers; the same as `rope` in most families."""
    layer_windows: tuple[int | None, ...]
    attention_scale: float
    hidden_activation: str = "silu"
    attention_bias: bool = False
    attention_softcap: float | None = None
    logits_softcap: float | None = None
    moe: MoeParameters | None = None
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """Raises UnsupportedModel when a number that every decoder needs is missing or cannot be meant."""
        architecture = _architecture(raw)
        text = {**raw, **raw["text_config"]} if isinstance(raw.get("text_config"), Mapping) else dict(raw)
        try:
            return _from_text_config(architecture, text)
        except KeyError as error:
            raise UnsupportedModel(f"the configuration of {architecture} has no {error}") from error


def _architecture(raw: Mapping[str, Any]) -> str:
    names = raw.get("architectures") or ()
    if not names:
        raise UnsupportedModel("the configuration names no architecture", hint="add `architectures` to config.json")
    return str(names[0])


def _from_text_config(architecture: str, raw: dict[str, Any]) -> ModelConfig:
    num_heads, hidden_size = _count(raw, "num_attention_heads"), _count(raw, "hidden_size")
    head_dim = _count({"head_dim": raw.get("head_dim") or hidden_size // num_heads}, "head_dim")
    num_layers = _count(raw, "num_hidden_layers")
    rope, local_rope = _rope(raw, head_dim)
    scale_from = float(raw.get("query_pre_attn_scalar") or head_dim)
    return ModelConfig(
        architecture=architecture,
        vocab_size=_count(raw, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_count(raw, "intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_count(
            {"num_key_value_heads": raw.get("num_key_value_heads") or num_heads}, "num_key_value_heads"
        ),
        head_dim=head_dim,
        norm_eps=float(raw.get("rms_norm_eps") or raw.get("layer_norm_eps") or 1e-6),
        max_position_embeddings=_count(raw, "max_position_embeddings"),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", architecture.startswith("Gemma"))),
        rope=rope,
        local_rope=local_rope,
        layer_windows=_windows(raw, architecture, num_layers),
        attention_scale=scale_from**-0.5,
        hidden_activation=_activation(raw, architecture),
        attention_bias=bool(raw.get("attention_bias", False)),
        attention_softcap=raw.get("attn_logit_softcapping"),
        logits_softcap=raw.get("final_logit_softcapping"),
        moe=_moe(raw, architecture, num_layers),
        eos_token_ids=_token_ids(raw.get("eos_token_id")),
        bos_token_id=raw.get("bos_token_id"),
    )


def _count(raw: Mapping[str, Any], name: str) -> int:
    value = raw[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _MOST[name]:
        raise UnsupportedModel(f"`{name}` is {str(value)[:40]}; it must be a whole number from 1 to {_MOST[name]}")
    return value


def _activation(raw: Mapping[str, Any], architecture: str) -> str:
    """Gemma ignores `hidden_act`: its first configurations name exact GELU there and mean the tanh approximation."""
    if architecture.startswith("Gemma"):
        return str(raw.get("hidden_activation") or "gelu_pytorch_tanh")
    return str(raw.get("hidden_act") or "silu")


def _token_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _rope(raw: Mapping[str, Any], head_dim: int) -> tuple[RopeParameters, RopeParameters]:
    given = raw.get("rope_parameters") or {}
    if "full_attention" in given:
        full, local = given["full_attention"], given.get("sliding_attention") or given["full_attention"]
    else:
        full = {**(raw.get("rope_scaling") or {}), **given}
        full.setdefault("rope_theta", raw.get("rope_theta", 10_000.0))
        local = full
        if raw.get("rope_local_base_freq") is not None:
            local = {"rope_theta": raw["rope_local_base_freq"]}
    partial = float(raw.get("partial_rotary_factor") or full.get("partial_rotary_factor") or 1.0)
    positions = raw.get("original_max_position_embeddings")
    return _rope_parameters(full, head_dim, partial, positions), _rope_parameters(local, head_dim, partial, positions)


def _rope_parameters(
    given: Mapping[str, Any], head_dim: int, partial: float, original_positions: int | None
) -> RopeParameters:
    kind = str(given.get("rope_type") or given.get("type") or "default")
    extra = {key: value for key, value in given.items() if key not in _ROPE_COMMON}
    if original_positions is not None:
        extra.setdefault("original_max_position_embeddings", original_positions)
    frozen = tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in sorted(extra.items()))
    return RopeParameters(
        float(given["rope_theta"]), int(head_dim * partial), kind, () if kind == "default" else frozen
    )


def _windows(raw: Mapping[str, Any], architecture: str, num_layers: int) -> tuple[int | None, ...]:
    window = raw.get("sliding_window")
    if not window or raw.get("use_sliding_window") is False:
        return (None,) * num_layers
    types = raw.get("layer_types")
    pattern = raw.get("sliding_window_pattern") or _WINDOW_PATTERNS.get(architecture)
    if types is None and pattern:
        types = ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(num_layers)]
    if types is None and raw.get("use_sliding_window"):
        first = int(raw.get("max_window_layers", num_layers))
        types = ["full_attention" if i < first else "sliding_attention" for i in range(num_layers)]
    if types is None:
        return (int(window),) * num_layers
    return tuple(int(window) if kind == "sliding_attention" else None for kind in types)


def _moe(raw: Mapping[str, Any], architecture: str, num_layers: int) -> MoeParameters | None:
    num_experts = raw.get("num_local_experts") or raw.get("num_experts")
    if not num_experts:
        return None
    sparse_step = int(raw.get("decoder_sparse_step", 1))
    dense = {i for i in range(num_layers) if (i + 1) % sparse_step} | set(raw.get("mlp_only_layers") or ())
    return MoeParameters(
        num_experts=_count({"num_experts": num_experts}, "num_experts"),
        experts_per_token=int(raw["num_experts_per_tok"]),
        intermediate_size=int(raw.get("moe_intermediate_size") or raw["intermediate_size"]),
        normalize_weights=bool(raw.get("norm_topk_prob", architecture.startswith("Mixtral"))),
        dense_layers=frozenset(dense),
    )
