"""The ways in which the tensors of a quantized format are known to be misread, each as a format of its own.

All of them exist in the wild: GPTQ files that say v1 and store v2, tools that ignore AWQ's order or take signed codes
for unsigned ones. Pure: a convention changes the neutral value that the declared format reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.verification.decision import ASYMMETRIC, V1, V2
from engine.weights.formats.awq import NIBBLE_OF, OUTPUT_OF, AwqFormat
from engine.weights.formats.compressed_tensors import CompressedTensorsFormat
from engine.weights.formats.format import CodedFormat, RawTensors
from engine.weights.formats.fp8 import Fp8Format
from engine.weights.formats.gptq import GptqFormat
from kernels.contracts import CodedWeight, FloatWeight, IntWeight
from kernels.reference.dequantize import dequantize

Change = Callable[[IntWeight], IntWeight]


@dataclass(frozen=True, slots=True)
class Reinterpreted:
    """Implements `CodedFormat`: what another one reads, changed."""

    inner: CodedFormat
    integers: Change | None = None
    floats: Callable[[FloatWeight], FloatWeight] | None = None

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def suffixes(self) -> tuple[str, ...]:
        return self.inner.suffixes

    def holds(self, module: str, tensors: RawTensors) -> bool:
        return self.inner.holds(module, tensors)

    def read(self, module: str, shape: tuple[int, int], tensors: RawTensors) -> CodedWeight:
        weight = self.inner.read(module, shape, tensors)
        if isinstance(weight, IntWeight) and self.integers is not None:
            return self.integers(weight)
        if isinstance(weight, FloatWeight) and self.floats is not None:
            return self.floats(weight)
        return weight


def conventions(declared: CodedFormat) -> dict[str, CodedFormat]:
    """Name -> format; the declared one is the first."""
    if isinstance(declared, AwqFormat):
        return dict(_awq(declared))
    if isinstance(declared, GptqFormat):
        return dict(_gptq(declared))
    if isinstance(declared, CompressedTensorsFormat):
        return dict(_compressed(declared))
    if isinstance(declared, Fp8Format):
        return {"fp8, scales multiply": declared} | dict(_float_scales(declared))
    return {declared.name: declared}


def _awq(declared: AwqFormat) -> Iterator[tuple[str, CodedFormat]]:
    yield "awq gemm", declared
    yield "awq, outputs in sequence", Reinterpreted(declared, lambda w: _outputs(w, OUTPUT_OF))
    yield "awq, high nibbles first", Reinterpreted(declared, lambda w: _outputs(w, _MIRRORED))
    yield "awq, zero points minus 1 (as gptq v1)", Reinterpreted(declared, lambda w: _zeros_plus(w, 1))
    yield "awq, zero points plus 1", Reinterpreted(declared, lambda w: _zeros_plus(w, -1))
    yield "awq, symmetric", Reinterpreted(declared, lambda w: replace(w, zero=None))
    yield from _shifted(declared, "awq")


_MIRRORED = tuple(OUTPUT_OF[7 - NIBBLE_OF[output]] for output in range(8))
"""Output j read where nibble 7 - i lies instead of nibble i."""


def _gptq(declared: GptqFormat) -> Iterator[tuple[str, CodedFormat]]:
    yield gptq_name(v2=declared.v2), declared
    if declared.symmetric:
        for v2 in (False, True):
            yield ASYMMETRIC + gptq_name(v2=v2), replace(declared, symmetric=False, v2=v2)
    else:
        yield gptq_name(v2=not declared.v2), replace(declared, v2=not declared.v2)
        yield "gptq, symmetric", Reinterpreted(declared, lambda w: replace(w, zero=None))
    yield "gptq, high codes first", Reinterpreted(declared, lambda w: _fields(w, _reversed, zeros=True))
    yield "gptq, codes swapped in pairs", Reinterpreted(declared, lambda w: _fields(w, _swapped, zeros=True))
    yield "gptq, codes in awq's order", Reinterpreted(declared, lambda w: _fields(w, _interleaved, zeros=True))
    yield "gptq, g_idx not meant", Reinterpreted(declared, _in_order)
    yield from _shifted(declared, "gptq")


def effective(
    conventions: Mapping[str, CodedFormat], module: str, shape: tuple[int, int], tensors: RawTensors
) -> set[str]:
    """Those that give the matrix other numbers than the first one does."""
    (_, declared), *others = conventions.items()
    weight = declared.read(module, shape, tensors)
    return {name for name, other in others if not _same(weight, other.read(module, shape, tensors))}


def _same(one: CodedWeight, other: CodedWeight) -> bool:
    return torch.equal(dequantize(one), dequantize(other))


def gptq_name(*, v2: bool) -> str:
    return V2 if v2 else V1


def _compressed(declared: CompressedTensorsFormat) -> Iterator[tuple[str, CodedFormat]]:
    name = "compressed-tensors"
    yield name, declared
    yield f"{name}, codes with the other offset", Reinterpreted(declared, _other_offset)
    yield f"{name}, zero points with the other offset", Reinterpreted(declared, _other_zero_offset)
    yield f"{name}, zero points minus 1", Reinterpreted(declared, lambda w: _zeros_plus(w, 1))
    yield f"{name}, zero points plus 1", Reinterpreted(declared, lambda w: _zeros_plus(w, -1))
    yield f"{name}, symmetric", Reinterpreted(declared, lambda w: replace(w, zero=None))
    yield f"{name}, high codes first", Reinterpreted(declared, lambda w: _fields(w, _reversed, zeros=True))
    yield f"{name}, codes swapped in pairs", Reinterpreted(declared, lambda w: _fields(w, _swapped, zeros=True))
    yield f"{name}, codes in awq's order", Reinterpreted(declared, lambda w: _fields(w, _interleaved, zeros=True))
    yield f"{name}, weight_g_idx not meant", Reinterpreted(declared, _in_order)
    yield from _shifted(declared, name)
    yield from _float_scales(declared)


def _float_scales(declared: CodedFormat) -> Iterator[tuple[str, CodedFormat]]:
    name = declared.name
    yield (
        f"{name}, scales divide",
        Reinterpreted(
            declared,
            lambda w: replace(w, scale=w.scale.reciprocal()),
            lambda w: replace(w, scale=w.scale.reciprocal()),
        ),
    )
    yield f"{name}, float8_e4m3fnuz", Reinterpreted(declared, floats=lambda w: replace(w, scale=w.scale * 0.5))
    yield f"{name}, tiles of scales transposed", Reinterpreted(declared, floats=_transposed)
    for by in (1, -1):
        yield (
            f"{name}, tiles of scales shifted by {by}",
            Reinterpreted(declared, floats=lambda w, by=by: _tiles_shifted(w, by)),  # type: ignore[misc]
        )


def _shifted(declared: CodedFormat, name: str) -> Iterator[tuple[str, CodedFormat]]:
    for by in (1, -1):
        yield (
            f"{name}, scales of the group {'before' if by == 1 else 'after'}",
            Reinterpreted(declared, lambda w, by=by: _groups_shifted(w, by)),  # type: ignore[misc]
        )


def _outputs(weight: IntWeight, order: tuple[int, ...]) -> IntWeight:
    """Outputs of each whole eight in another order, with their zero points; scales are not packed and stay."""
    if weight.out_features % 8:
        return weight
    index = (torch.arange(weight.out_features).view(-1, 8)[:, torch.tensor(order)]).flatten()
    zero = None if weight.zero is None else weight.zero[index]
    return replace(weight, codes=weight.codes[index], zero=zero)


def _zeros_plus(weight: IntWeight, amount: int) -> IntWeight:
    if weight.zero is None:
        return weight
    return replace(weight, zero=(weight.zero + amount) % 2**weight.bits)


def _groups_shifted(weight: IntWeight, by: int) -> IntWeight:
    zero = None if weight.zero is None else weight.zero.roll(by, dims=1)
    return replace(weight, scale=weight.scale.roll(by, dims=1), zero=zero)


def _tiles_shifted(weight: FloatWeight, by: int) -> FloatWeight:
    return weight if weight.block is None else replace(weight, scale=weight.scale.roll(by, dims=1))


def _transposed(weight: FloatWeight) -> FloatWeight:
    if weight.block is None:
        return weight
    return replace(weight, scale=weight.scale.T.reshape(weight.scale.shape).contiguous())


def _reversed(fields: int) -> list[int]:
    return list(range(fields))[::-1]


def _swapped(fields: int) -> list[int]:
    return [place ^ 1 for place in range(fields)]


def _interleaved(fields: int) -> list[int]:
    """Place i of a word is read where AWQ has it; only words of eight have that order."""
    return list(NIBBLE_OF) if fields == 8 else list(range(fields))


def _fields(weight: IntWeight, order: Callable[[int], list[int]], *, zeros: bool) -> IntWeight:
    """Codes of each word, along the inputs as they are stored, in another order; zero points along the outputs."""
    if weight.bits == 3:
        return weight
    fields = 32 // weight.bits
    places = torch.tensor(order(fields))
    codes, zero = weight.codes, weight.zero
    if weight.in_features % fields == 0:
        stored = _as_stored(weight).view(weight.out_features, -1, fields)[..., places].flatten(1)
        codes = stored if weight.columns is None else stored[:, weight.columns].contiguous()
    if zeros and zero is not None and weight.out_features % fields == 0:
        zero = zero[torch.arange(weight.out_features).view(-1, fields)[:, places].flatten()]
    return replace(weight, codes=codes.contiguous(), zero=zero)


def _as_stored(weight: IntWeight) -> Tensor:
    """Codes with the columns in the order of the file, which is that of `x`."""
    if weight.columns is None:
        return weight.codes
    stored = torch.empty_like(weight.codes)
    stored[:, weight.columns] = weight.codes
    return stored


def _in_order(weight: IntWeight) -> IntWeight:
    return replace(weight, codes=_as_stored(weight), columns=None)


def _other_offset(weight: IntWeight) -> IntWeight:
    """Two's complement for offset binary, or the reverse."""
    return replace(_other_zero_offset(weight), codes=weight.codes ^ 2 ** (weight.bits - 1))


def _other_zero_offset(weight: IntWeight) -> IntWeight:
    if weight.zero is None:
        return weight
    return replace(weight, zero=(weight.zero + 2 ** (weight.bits - 1)) % 2**weight.bits)
