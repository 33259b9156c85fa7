"""FP8 checkpoints: float8_e4m3fn codes with a scale per tensor, per channel, or per tile of 128 by 128.

`weight_scale` multiplies, and so does DeepSeek's `weight_scale_inv` in spite of its name. Scales per tensor are spread
over rows, so that stacked matrices keep their own. `input_scale` is there where activations are static.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.errors import UnsupportedModel, WeightsMismatch
from engine.weights.formats.format import RawTensors, expect
from kernels.contracts import FloatWeight

E4M3_NAN = 0x7F
"""The code of NaN, without its sign."""


@dataclass(frozen=True, slots=True)
class Fp8Format:
    block: tuple[int, int] | None
    static: bool
    name: str = "fp8"
    suffixes: tuple[str, ...] = ("weight", "weight_scale", "weight_scale_inv", "input_scale", "activation_scale")

    @classmethod
    def from_config(cls, given: Mapping[str, Any]) -> Fp8Format:
        """Raises UnsupportedModel for other float formats, by name."""
        layout = str(given.get("fmt") or "e4m3").lower()
        if layout not in ("e4m3", "float8_e4m3fn"):
            raise UnsupportedModel(f"FP8 of the kind {layout[:16]!r} is not read", hint="FP8 is read as e4m3")
        scheme = str(given.get("activation_scheme") or "dynamic").lower()
        if scheme not in ("static", "dynamic"):
            raise UnsupportedModel(f"the activation scheme {scheme[:16]!r} of FP8 is not known: static or dynamic")
        return cls(tile(given.get("weight_block_size")), static=scheme == "static")

    def holds(self, module: str, tensors: RawTensors) -> bool:
        return any(f"{module}.{suffix}" in tensors for suffix in ("weight_scale", "weight_scale_inv"))

    def read(self, module: str, shape: tuple[int, int], tensors: RawTensors) -> FloatWeight:
        name = next(s for s in ("weight_scale_inv", "weight_scale") if f"{module}.{s}" in tensors)
        scale, block = spread(module, name, tensors.raw(f"{module}.{name}"), shape, self.block)
        return FloatWeight(
            float_codes(module, tensors.raw(f"{module}.weight"), shape),
            scale,
            block,
            activations="fp8",
            input_scale=input_scale(module, tensors) if self.static else None,
        )


def tile(given: Any) -> tuple[int, int] | None:
    """(outputs, inputs) that share a scale, from `[128, 128]`; None where nothing is given."""
    if given is None:
        return None
    if isinstance(given, (list, tuple)) and len(given) == 2 and all(isinstance(n, int) and n > 0 for n in given):
        return given[0], given[1]
    raise WeightsMismatch(f"{str(given)[:40]!r} is no size of a block of weights", hint="give [128, 128]")


def float_codes(module: str, weight: Tensor, shape: tuple[int, int]) -> Tensor:
    """float8_e4m3fn `[out, in]`. Raises UnsupportedModel for another dtype, WeightsMismatch for NaN."""
    if weight.dtype is not torch.float8_e4m3fn:
        raise UnsupportedModel(f"{module}.weight is stored as {weight.dtype}, which is no float8_e4m3fn")
    expect(module, "weight", weight, shape)
    if bool(((weight.view(torch.uint8) & E4M3_NAN) == E4M3_NAN).any()):
        raise WeightsMismatch(f"tensor {module}.weight holds NaN", hint="the file is damaged: fetch the model again")
    return weight


def spread(
    module: str, name: str, scale: Tensor, shape: tuple[int, int], block: tuple[int, int] | None
) -> tuple[Tensor, tuple[int, int] | None]:
    """(float32 scale, block) as `FloatWeight` has them."""
    wide = scale.float()
    if wide.numel() == 1:
        return wide.reshape(1, 1).expand(shape[0], 1).contiguous(), None
    if wide.numel() == shape[0] and (wide.dim() == 1 or wide.shape[1] == 1):
        return wide.reshape(shape[0], 1).contiguous(), None
    if block is None:
        raise WeightsMismatch(
            f"{module}.{name} has shape {tuple(scale.shape)}: one scale, or one an output, is expected"
        )
    expect(module, name, scale, (-(-shape[0] // block[0]), -(-shape[1] // block[1])))
    return wide.contiguous(), block


def input_scale(module: str, tensors: RawTensors) -> float | None:
    """Of static activations. Raises WeightsMismatch where it is absent, no single number, or not above 0."""
    name = next((f"{module}.{s}" for s in ("input_scale", "activation_scale") if f"{module}.{s}" in tensors), None)
    if name is None:
        raise WeightsMismatch(f"{module} has static activations but no input_scale")
    scale = tensors.raw(name)
    if scale.numel() != 1 or not float(scale) > 0.0:
        raise WeightsMismatch(f"{name} is not one number above 0")
    return float(scale)
