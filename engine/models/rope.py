"""Rotary position tables: inverse frequencies of each scaling scheme, then cos and sin per position.

Schemes: default, linear, llama3, yarn (arXiv 2309.00071), longrope (arXiv 2402.13753) and plain `factors` as llama.cpp
stores them. Pure functions of the configuration.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.model_config import RopeParameters


def rotary_tables(
    rope: RopeParameters, max_position_embeddings: int, positions: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """`(cos, sin)`, float32 [positions, rotary_dim / 2]; the scheme's attention factor is already multiplied in.

    `max_position_embeddings` is the model's declared window, `positions` the number of rows wanted (the served window).
    """
    if rope.kind not in _SCHEMES:
        raise UnsupportedModel(f"RoPE scaling {rope.kind!r}", hint=f"supported: {', '.join(sorted(_SCHEMES))}")
    base = 1.0 / rope.theta ** (torch.arange(0, rope.rotary_dim, 2, dtype=torch.int64).float() / rope.rotary_dim)
    frequencies, factor = _SCHEMES[rope.kind](_Request(base, rope, max_position_embeddings, positions))
    angles = torch.outer(torch.arange(positions).float(), frequencies)
    return (angles.cos() * factor).to(device), (angles.sin() * factor).to(device)


@dataclass(frozen=True, slots=True)
class _Request:
    """Unscaled frequencies and what a scheme may depend on."""

    base: Tensor
    rope: RopeParameters
    window: int
    positions: int


_Scheme = Callable[[_Request], tuple[Tensor, float]]


def _default(request: _Request) -> tuple[Tensor, float]:
    return request.base, 1.0


def _linear(request: _Request) -> tuple[Tensor, float]:
    return request.base / request.rope.get("factor"), 1.0


def _factors(request: _Request) -> tuple[Tensor, float]:
    return request.base / torch.tensor(request.rope.get("factors")), 1.0


def _llama3(request: _Request) -> tuple[Tensor, float]:
    base, rope = request.base, request.rope
    factor, low, high = rope.get("factor"), rope.get("low_freq_factor"), rope.get("high_freq_factor")
    original = rope.get("original_max_position_embeddings")
    wavelength = 2 * math.pi / base
    smooth = (original / wavelength - low) / (high - low)
    blended = (1 - smooth) * base / factor + smooth * base
    scaled = torch.where(wavelength > original / low, base / factor, base)
    medium = (wavelength >= original / high) & (wavelength <= original / low)
    return torch.where(medium, blended, scaled), 1.0


def _yarn(request: _Request) -> tuple[Tensor, float]:
    base, rope = request.base, request.rope
    original = rope.get("original_max_position_embeddings") or request.window
    factor = rope.get("factor") or request.window / original
    dim, theta = rope.rotary_dim, rope.theta

    def dimension_of(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension_of(rope.get("beta_fast") or 32), dimension_of(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(dim // 2).float() - low) / max(high - low, 0.001)).clamp(0, 1)
    return base / factor * ramp + base * (1 - ramp), _yarn_attention(rope, factor)


def _yarn_attention(rope: RopeParameters, factor: float) -> float:
    given = rope.get("attention_factor")
    if given is not None:
        return float(given)

    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    one, all_dims = rope.get("mscale"), rope.get("mscale_all_dim")
    return mscale(one) / mscale(all_dims) if one and all_dims else mscale(1.0)


def _longrope(request: _Request) -> tuple[Tensor, float]:
    """One table serves the whole run: the long factors when the served window passes the original one.

    Hugging Face switches tables with the length of each call, which would make cached keys of one sequence disagree.
    """
    base, rope = request.base, request.rope
    original = rope.get("original_max_position_embeddings") or request.window
    factor = rope.get("factor") or request.window / original
    attention = rope.get("attention_factor")
    if attention is None:
        attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    chosen = rope.get("long_factor") if request.positions > original else rope.get("short_factor")
    return base / torch.tensor(chosen), float(attention)


_SCHEMES: dict[str, _Scheme] = {
    "default": _default,
    "linear": _linear,
    "factors": _factors,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
