"""Rotary tables against transformers' own functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.errors import UnsupportedModel
from engine.model_config import ModelConfig, RopeParameters
from engine.models.rope import rotary_tables

CPU = torch.device("cpu")
SCHEMES: dict[str, dict[str, Any]] = {
    "linear": {"factor": 3.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16.0},
    "longrope": {
        "short_factor": [1.0 + i / 10 for i in range(8)],
        "long_factor": [2.0 + i for i in range(8)],
        "original_max_position_embeddings": 64,
    },
}


def configs(kind: str) -> tuple[LlamaConfig, ModelConfig]:
    rope = {"rope_type": kind, "rope_theta": 10_000.0, **SCHEMES[kind]}
    theirs = LlamaConfig(hidden_size=64, num_attention_heads=4, max_position_embeddings=256, rope_parameters=rope)
    return theirs, ModelConfig.from_hf(theirs.to_dict() | {"architectures": ["LlamaForCausalLM"]})


@pytest.mark.parametrize("kind", list(SCHEMES))
@pytest.mark.parametrize("positions", [32, 256], ids=["short", "long"])
def test_tables_equal_transformers(kind: str, positions: int) -> None:
    theirs, ours = configs(kind)
    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](theirs, CPU, seq_len=positions)
    angles = torch.outer(torch.arange(positions).float(), frequencies)
    cos, sin = rotary_tables(ours.rope, 256, positions, CPU)
    torch.testing.assert_close(cos, angles.cos() * factor)
    torch.testing.assert_close(sin, angles.sin() * factor)


def test_stored_factors_divide_the_frequencies() -> None:
    """As llama.cpp stores llama 3's scheme: one divisor per frequency."""
    theirs, ours = configs("llama3")
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](theirs, CPU)
    plain = 1.0 / 10_000.0 ** (torch.arange(0, 16, 2).float() / 16)
    stored = RopeParameters(10_000.0, 16, "factors", (("factors", tuple((plain / scaled).tolist())),))
    torch.testing.assert_close(rotary_tables(stored, 256, 100, CPU), rotary_tables(ours.rope, 256, 100, CPU))


def test_an_unknown_scheme_lists_the_known_ones() -> None:
    with pytest.raises(UnsupportedModel) as caught:
        rotary_tables(RopeParameters(10_000.0, 16, "spiral"), 256, 8, CPU)
    assert "yarn" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("raw", "windows"),
    [
        ({"sliding_window": 8}, (8, 8, 8, 8)),
        ({"sliding_window": None}, (None,) * 4),
        ({"sliding_window": 8, "use_sliding_window": False}, (None,) * 4),
        ({"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3}, (None, None, None, 8)),
        ({"sliding_window": 8, "sliding_window_pattern": 2}, (8, None, 8, None)),
        ({"sliding_window": 8, "architectures": ["Gemma2ForCausalLM"]}, (8, None, 8, None)),
        ({"sliding_window": 8, "layer_types": ["full_attention"] * 3 + ["sliding_attention"]}, (None, None, None, 8)),
    ],
)
def test_windows_of_all_spellings_are_read(raw: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    base = LlamaConfig(num_hidden_layers=4).to_dict() | {"architectures": ["LlamaForCausalLM"]}
    assert ModelConfig.from_hf(base | raw).layer_windows == windows


def test_old_and_new_spellings_of_rope_agree() -> None:
    base = LlamaConfig().to_dict() | {"architectures": ["LlamaForCausalLM"]}
    del base["rope_parameters"]
    old = base | {"rope_theta": 5000.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = base | {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}}
    assert ModelConfig.from_hf(old).rope == ModelConfig.from_hf(new).rope
