"""The request and the result of quantizing a model, and the way in. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

METHODS = ("awq", "gptq", "fp8", "int8")
Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total)."""


@dataclass(frozen=True, slots=True)
class QuantizeRequest:
    """`group`: inputs per scale of awq and gptq, at most; it is lowered to what divides every width of the model."""

    model: str
    to: str
    out: Path
    bits: int = 4
    group: int = 128
    symmetric: bool = True
    """Of gptq: awq has zero points."""
    act_order: bool = False
    calibration: str = ""
    """The text; empty: what the model itself writes."""
    windows: int = 32
    window_tokens: int = 256


@dataclass(frozen=True, slots=True)
class Quantized:
    """What was written."""

    config: Mapping[str, Any]
    bytes_before: int
    bytes_after: int
    calibration_tokens: int


def quantize_model(request: QuantizeRequest, progress: Progress) -> Quantized:
    """See `engine.quantization.run.quantize`."""
    from engine.quantization.run import quantize

    return quantize(request, progress)
