"""Weights as they come to `pack_linear`: dense, or quantized in one neutral form per kind of format.

Every vendor's bit order ends in `engine/weights`; a back end packs these values as it likes. Values only: the one thing
decided here is which of them may be stacked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

QUANTIZATIONS: tuple[str | None, ...] = (None, "int8", "int4", "gguf")
"""None: `dtype`. int8: W8A8, scale per output channel and per row. int4: groups of 32 with scale and minimum, 8-bit
activations. gguf: the codes of the file as they are (needs `QuantizedWeight`), 8-bit activations. An `IntWeight` or
`FloatWeight` is quantized already: it is packed as it is under None, and no other value is accepted with it."""

E4M3_MAX = 448.0
"""Largest finite float8_e4m3fn; larger values are clamped before the cast, which would give NaN."""


class KernelError(ValueError):
    """A tensor or argument that breaks a contract; the message carries what was found and what is accepted."""


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """Rows of GGUF blocks, untouched. `data` is uint8 `[out_features, bytes per row]`, `type` ggml's name (`Q4_K`)."""

    data: Tensor
    type: str
    in_features: int

    @property
    def out_features(self) -> int:
        return int(self.data.shape[0])

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


@dataclass(frozen=True, slots=True)
class IntWeight:
    """Integer codes with a scale per group of inputs: AWQ, GPTQ and compressed-tensors, in no vendor's bit order.

    `w[o, columns[c]] = (codes[o, c] - zero[o, c // group]) * scale[o, c // group]`.
    """

    codes: Tensor
    """uint8 `[out, in]`, each below `2**bits`."""
    scale: Tensor
    """float32 `[out, ceil(in / group)]`; the last group may be shorter."""
    zero: Tensor | None
    """float32, the shape of `scale`; None: `2**(bits - 1)` (symmetric)."""
    bits: int
    """2, 3, 4 or 8."""
    group: int
    columns: Tensor | None = None
    """int64 `[in]`, a permutation: codes of an act-order file lie sorted by group. None: the order of `x`."""
    activations: str | None = None
    """What the format rounds `x` to before the product: None or `int8`. A back end may keep `x` more precise."""
    input_scale: float | None = None
    """Of static activations; None: the scale of each row is found as it comes."""
    input_zero: float = 0.0
    """Zero point of static asymmetric activations, a signed int8 code."""

    @property
    def out_features(self) -> int:
        return int(self.codes.shape[0])

    @property
    def in_features(self) -> int:
        return int(self.codes.shape[1])

    @property
    def nbytes(self) -> int:
        """Of the codes at their own width, with their scales and zero points."""
        zeros = 0 if self.zero is None else self.zero.numel() * self.bits // 8
        return self.codes.numel() * self.bits // 8 + 2 * self.scale.numel() + zeros


@dataclass(frozen=True, slots=True)
class FloatWeight:
    """float8 codes with scales that multiply: `w[o, c] = codes[o, c] * scale[o, 0]`, or a scale per tile of `block`."""

    codes: Tensor
    """float8_e4m3fn `[out, in]`."""
    scale: Tensor
    """float32 `[out, 1]`, or `[ceil(out / block[0]), ceil(in / block[1])]`."""
    block: tuple[int, int] | None = None
    activations: str | None = None
    """None or `fp8`: per row, or per row and `block[1]` inputs. A back end may keep `x` more precise."""
    input_scale: float | None = None
    """Of static activations; None: found as rows come."""

    @property
    def out_features(self) -> int:
        return int(self.codes.shape[0])

    @property
    def in_features(self) -> int:
        return int(self.codes.shape[1])

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scale.nbytes


CodedWeight = QuantizedWeight | IntWeight | FloatWeight
"""A weight that is stored quantized."""
Weight = Tensor | CodedWeight


@dataclass(slots=True)
class PackedLinear:
    """A weight in its back end's private layout. Made by `pack_linear`, read only by `linear` of the same back end."""

    out_features: int
    in_features: int
    dtype: torch.dtype
    """Of activations in and out."""
    quantization: str | None
    deterministic: bool
    bias: Tensor | None
    data: Any
    """Private to the back end."""
    nbytes: int = 0


def check_quantization(weights: Sequence[Weight], quantization: str | None) -> None:
    if quantization not in QUANTIZATIONS:
        raise KernelError(f"quantization {quantization!r} is unknown; choose one of {QUANTIZATIONS}")
    if quantization == "gguf" and not all(isinstance(w, QuantizedWeight) for w in weights):
        raise KernelError("quantization 'gguf' keeps the codes of a GGUF file, but the weight is a plain tensor")
    coded = {type(w) for w in weights if isinstance(w, (IntWeight, FloatWeight))}
    if coded and quantization is not None:
        raise KernelError(f"the weight is quantized already; quantization {quantization!r} cannot be applied to it")
    if coded and len({type(w) for w in weights}) > 1:
        raise KernelError("weights of different kinds cannot be stacked")
    widths = {width(w) for w in weights}
    if len(widths) != 1:
        raise KernelError(f"stacked weights need one input width, found {sorted(widths)}")


def width(weight: Weight) -> int:
    """Inputs of a weight."""
    return int(weight.shape[1]) if isinstance(weight, Tensor) else weight.in_features


def as_weights(weight: Weight | Sequence[Weight]) -> list[Weight]:
    """One weight or several to stack, always as a non-empty list."""
    weights = [weight] if isinstance(weight, (Tensor, QuantizedWeight, IntWeight, FloatWeight)) else list(weight)
    if not weights:
        raise KernelError("pack_linear needs at least one weight")
    return weights
