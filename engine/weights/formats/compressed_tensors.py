"""compressed-tensors as llm-compressor writes them: `pack-quantized`, `int-quantized` and `float-quantized` weights.

pack: `weight_packed` int32 `[out, ceil(in*bits/32)]` low bits first, each code plus `2**(bits-1)`; `weight_zero_point`
packed along the outputs, or as wide as the scales; `weight_g_idx` for act-order. int, float: `weight` as int8, float8.
`weight_scale` `[out, groups]`, `[out, 1]`, `[1]` or one per tile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.errors import UnsupportedModel, WeightsMismatch
from engine.weights.formats.format import RawTensors, column_order, expect, group_size
from engine.weights.formats.fp8 import float_codes, input_scale, spread, tile
from engine.weights.formats.patterns import safe_pattern
from engine.weights.formats.words import BITS, unpack
from kernels.contracts import CodedWeight, FloatWeight, IntWeight

READ = ("dense", "pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision")


@dataclass(frozen=True, slots=True)
class Scheme:
    """One of `config_groups`: how the weights and the activations of its targets are stored."""

    targets: tuple[str, ...]
    """Names of modules, or of their class (`Linear`)."""
    patterns: tuple[re.Pattern[str], ...]
    """Of the targets that are regular expressions (`re:`)."""
    bits: int
    group: int | None
    block: tuple[int, int] | None
    activations: str | None
    static: bool

    def names(self, module: str) -> bool:
        return module in self.targets or any(pattern.match(module) for pattern in self.patterns)


@dataclass(frozen=True, slots=True)
class CompressedTensorsFormat:
    schemes: tuple[Scheme, ...]
    name: str = "compressed-tensors"
    suffixes: tuple[str, ...] = (
        "weight",
        "weight_packed",
        "weight_scale",
        "weight_zero_point",
        "weight_shape",
        "weight_g_idx",
        "input_scale",
        "input_zero_point",
    )

    @classmethod
    def from_config(cls, given: Mapping[str, Any]) -> CompressedTensorsFormat:
        """Raises UnsupportedModel for formats and widths that are not read, by name."""
        groups = given.get("config_groups")
        listed = (
            [group for group in groups.values() if isinstance(group, Mapping)] if isinstance(groups, Mapping) else []
        )
        for layout in (given.get("format"), *(group.get("format") for group in listed)):
            if layout is not None and layout not in READ:
                raise UnsupportedModel(
                    f"the compressed-tensors format {str(layout)[:40]!r} is not read",
                    hint=f"save the checkpoint as {', '.join(READ[1:4])}",
                )
        return cls(tuple(_scheme(group) for group in listed if isinstance(group.get("weights"), Mapping)))

    def holds(self, module: str, tensors: RawTensors) -> bool:
        return f"{module}.weight_scale" in tensors

    def read(self, module: str, shape: tuple[int, int], tensors: RawTensors) -> CodedWeight:
        scheme = self._scheme_of(module)
        if f"{module}.weight_packed" in tensors:
            return _packed(module, shape, scheme, tensors)
        weight = tensors.raw(f"{module}.weight")
        if weight.dtype is torch.int8:
            return _int(module, shape, scheme, weight, tensors)
        scale, block = spread(module, "weight_scale", tensors.raw(f"{module}.weight_scale"), shape, scheme.block)
        static = input_scale(module, tensors) if scheme.static and scheme.activations else None
        return FloatWeight(float_codes(module, weight, shape), scale, block, scheme.activations, static)

    def _scheme_of(self, module: str) -> Scheme:
        """The scheme that names the module; else that of all linear layers; else the only one there is."""
        named = [scheme for scheme in self.schemes if scheme.names(module)]
        general = [scheme for scheme in self.schemes if "Linear" in scheme.targets]
        found = (named or general or list(self.schemes))[:1]
        if not found:
            raise WeightsMismatch(f"{module} is quantized, but config_groups does not say how")
        return found[0]


def _scheme(group: Mapping[str, Any]) -> Scheme:
    weights, acts = group["weights"], group.get("input_activations")
    bits, kind = weights.get("num_bits", 8), weights.get("type", "int")
    if kind not in ("int", "float") or bits not in BITS or (kind == "float" and bits != 8):
        raise UnsupportedModel(
            f"compressed-tensors weights of the type {str(kind)[:16]} with {bits!r:.16} bits are not read",
            hint="int weights are read with 2, 3, 4 and 8 bits, float weights with 8",
        )
    size, given = weights.get("group_size"), group.get("targets")
    targets = [str(target) for target in given] if isinstance(given, (list, tuple)) else []
    rounded = isinstance(acts, Mapping) and acts.get("num_bits", 8) == 8
    # Zero points that are found as rows come are not applied: those activations stay as precise as they are.
    plain = isinstance(acts, Mapping) and (acts.get("symmetric", True) or not acts.get("dynamic", False))
    return Scheme(
        targets=tuple(target for target in targets if not target.startswith("re:")),
        patterns=tuple(safe_pattern(target[3:]) for target in targets if target.startswith("re:")),
        bits=int(bits),
        group=size if isinstance(size, int) else None,
        block=tile(weights.get("block_structure")),
        activations=("fp8" if kind == "float" else "int8") if rounded and plain else None,
        static=isinstance(acts, Mapping) and not acts.get("dynamic", False),
    )


def _packed(module: str, shape: tuple[int, int], scheme: Scheme, tensors: RawTensors) -> IntWeight:
    outputs, inputs = shape
    words, bits = tensors.raw(f"{module}.weight_packed"), scheme.bits
    expect(module, "weight_packed", words, (outputs, -(-inputs * bits // 32)))
    return _grouped(module, shape, scheme, unpack(words, bits, inputs), tensors)


def _int(module: str, shape: tuple[int, int], scheme: Scheme, weight: Tensor, tensors: RawTensors) -> IntWeight:
    expect(module, "weight", weight, shape)
    middle = 2 ** (scheme.bits - 1)
    codes = weight.to(torch.int16) + middle
    if bool(((codes < 0) | (codes >= 2 * middle)).any()):
        raise WeightsMismatch(f"{module}.weight holds codes of more than {scheme.bits} bits")
    return _grouped(module, shape, scheme, codes.to(torch.uint8), tensors)


def _grouped(module: str, shape: tuple[int, int], scheme: Scheme, codes: Tensor, tensors: RawTensors) -> IntWeight:
    outputs, inputs = shape
    scale = tensors.raw(f"{module}.weight_scale").float()
    if scale.numel() == 1:
        scale = scale.reshape(1, 1).expand(outputs, 1)
    elif scale.dim() == 1 and scale.numel() == outputs:
        scale = scale.reshape(outputs, 1)
    groups = int(scale.shape[-1])
    expect(module, "weight_scale", scale, (outputs, groups))
    group = group_size(module, inputs, groups, scheme.group)
    columns = None
    if f"{module}.weight_g_idx" in tensors:
        columns = column_order(module, tensors.raw(f"{module}.weight_g_idx"), inputs, group)
    if columns is not None:
        codes = codes[:, columns].contiguous()
    static, zero_code = None, 0.0
    if scheme.static and scheme.activations:
        static = input_scale(module, tensors)
        if f"{module}.input_zero_point" in tensors:
            zero_code = float(tensors.raw(f"{module}.input_zero_point"))
    return IntWeight(
        codes,
        scale.contiguous(),
        _zero_points(module, (outputs, groups), scheme.bits, tensors),
        scheme.bits,
        group,
        columns,
        scheme.activations,
        static,
        zero_code,
    )


def _zero_points(module: str, shape: tuple[int, int], bits: int, tensors: RawTensors) -> Tensor | None:
    """float32 `[out, groups]`, counted from the smallest code; None: the middle."""
    if f"{module}.weight_zero_point" not in tensors:
        return None
    stored, middle = tensors.raw(f"{module}.weight_zero_point"), 2 ** (bits - 1)
    if stored.dtype is torch.int32:
        expect(module, "weight_zero_point", stored, (-(-shape[0] * bits // 32), shape[1]))
        return unpack(stored.T, bits, shape[0]).T.float().contiguous()
    zero: Tensor = stored.float()
    if zero.numel() == 1:
        zero = zero.reshape(1, 1).expand(shape)
    expect(module, "weight_zero_point", zero, shape)
    counted: Tensor = zero + middle
    return counted.contiguous()
