"""GPTQ as AutoGPTQ and GPTQModel store it: 2, 3, 4 or 8 bits, packed along the inputs, low bits first.

`qweight` int32 `[in*bits/32, out]`, `qzeros` int32 `[groups, out*bits/32]`, `scales` float16 `[groups, out]`, `g_idx`
int32 `[in]`: the group of each input (act-order). `checkpoint_format` `gptq` (v1) stores zero points minus 1, `gptq_v2`
as they are. Files with `sym: true` exist that say v1 and store v2: their zero points are the middle and are never read.
arXiv 2210.17323.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from engine.errors import UnsupportedModel, WeightsMismatch
from engine.weights.formats.format import RawTensors, column_order, expect, group_size
from engine.weights.formats.patterns import safe_pattern
from engine.weights.formats.words import BITS, plus_one, unpack
from kernels.contracts import IntWeight

logger = logging.getLogger(__name__)
_FORMATS = ("gptq", "gptq_v2")


@dataclass(frozen=True, slots=True)
class GptqFormat:
    group: int | None
    symmetric: bool
    v2: bool
    whole_words: bool = False
    """Zero points were made v1 by one subtraction a word (GPTQModel), so a borrow goes into the next code."""
    dynamic: tuple[tuple[re.Pattern[str], Mapping[str, Any]], ...] = ()
    """Overrides for modules whose name a pattern matches; the first that matches counts."""
    name: str = "gptq"
    suffixes: tuple[str, ...] = ("qweight", "qzeros", "scales", "g_idx")

    @classmethod
    def from_config(cls, given: Mapping[str, Any]) -> GptqFormat:
        """Raises UnsupportedModel for layouts and widths that are not read, by name."""
        bits = given.get("bits", 4)
        if bits not in BITS:
            raise UnsupportedModel(
                f"GPTQ with {bits!r:.16} bits is not read", hint="GPTQ is read with 2, 3, 4 and 8 bits"
            )
        layout = str(given.get("checkpoint_format") or given.get("format") or "gptq").lower()
        if layout not in _FORMATS:
            raise UnsupportedModel(
                f"the GPTQ layout {layout[:32]!r} is not read",
                hint="save the checkpoint as `gptq` or `gptq_v2`, which every tool can read",
            )
        group = given.get("group_size")
        meta = given.get("meta")
        quantizer = str(meta.get("quantizer", "")) if isinstance(meta, Mapping) else ""
        rules = given.get("dynamic")
        return cls(
            group if isinstance(group, int) else None,
            symmetric=bool(given.get("sym", True)),
            v2=layout == "gptq_v2",
            whole_words="gptqmodel" in quantizer.lower(),
            dynamic=_rules(rules) if isinstance(rules, Mapping) else (),
        )

    def holds(self, module: str, tensors: RawTensors) -> bool:
        return f"{module}.qweight" in tensors

    def read(self, module: str, shape: tuple[int, int], tensors: RawTensors) -> IntWeight:
        outputs, inputs = shape
        own = next((values for pattern, values in self.dynamic if pattern.match(module)), {})
        qweight, scales = tensors.raw(f"{module}.qweight"), tensors.raw(f"{module}.scales")
        bits = _bits(module, int(qweight.shape[0]), inputs)
        named = own.get("group_size", self.group)
        group = group_size(module, inputs, int(scales.shape[0]), named if isinstance(named, int) else None)
        groups = -(-inputs // group)
        expect(module, "scales", scales, (groups, outputs))
        expect(module, "qweight", qweight, (inputs * bits // 32, outputs))
        codes = unpack(qweight.T, bits, inputs)
        columns = None
        if f"{module}.g_idx" in tensors:
            columns = column_order(module, tensors.raw(f"{module}.g_idx"), inputs, group)
        if columns is not None:
            codes = codes[:, columns].contiguous()
        zero = None
        if f"{module}.qzeros" in tensors:
            qzeros = tensors.raw(f"{module}.qzeros")
            expect(module, "qzeros", qzeros, (groups, -(-outputs * bits // 32)))
            if bool(own.get("sym", self.symmetric)):
                _note_other_zeros(module, qzeros, bits, outputs)
            else:
                zero = self.zero_points(qzeros, bits, outputs).T.float().contiguous()
        return IntWeight(codes, scales.T.float().contiguous(), zero, bits, group, columns)

    def zero_points(self, qzeros: Tensor, bits: int, outputs: int) -> Tensor:
        """uint8 `[groups, out]`, the true ones."""
        if self.v2:
            return unpack(qzeros, bits, outputs)
        if self.whole_words:
            return unpack(plus_one(qzeros, bits), bits, outputs)
        true_zeros: Tensor = unpack(qzeros, bits, outputs) + 1 & (2**bits - 1)
        return true_zeros


def _bits(module: str, rows: int, inputs: int) -> int:
    bits = rows * 32 // inputs if inputs else 0
    if bits not in BITS or bits * inputs != rows * 32:
        raise WeightsMismatch(f"{module}.qweight has {rows} rows, which fit no width of {inputs} inputs")
    return bits


def _note_other_zeros(module: str, qzeros: Tensor, bits: int, outputs: int) -> None:
    middle = 2 ** (bits - 1)
    found = unpack(qzeros[:1], bits, min(outputs, 8))
    if not bool(((found == middle) | (found == middle - 1)).all()):
        logger.warning(
            "%s: symmetric by its configuration, but its zero points are not the middle; they are not read", module
        )


def _rules(given: Mapping[str, Any]) -> tuple[tuple[re.Pattern[str], Mapping[str, Any]], ...]:
    """GPTQModel's `dynamic`: `+:pattern` (or no sign) with values for these modules; `-:` ones are stored dense."""
    rules = []
    for key, values in given.items():
        sign, pattern = (key[0], key[2:]) if key[:2] in ("+:", "-:") else ("+", key)
        if sign == "-":
            continue
        rules.append((safe_pattern(pattern), values if isinstance(values, Mapping) else {}))
    return tuple(rules)
