"""Checks one quantized matrix: packed again it is the same bits, and its product is that of its dense twin."""

from __future__ import annotations

from hashlib import sha256

import torch
from torch import Tensor

from engine.quantization.writers import awq_tensors, byte_tensors, float_tensors, gptq_tensors, packed_tensors
from engine.verification.decision import V1, V2, VARIED
from engine.verification.report import MatrixReport
from engine.weights.formats.awq import AwqFormat
from engine.weights.formats.format import CodedFormat, RawTensors
from engine.weights.formats.gptq import GptqFormat
from engine.weights.formats.words import unpack
from kernels.contracts import CodedWeight, FloatWeight, IntWeight, Ops
from kernels.reference.dequantize import dequantize

PROBE_ROWS = 8
BOUND_INT8 = 0.02
"""Activations rounded to 8 bits a row: 1 of 127 steps of the largest, of which a normal row has 4 deviations."""
BOUND_FP8 = 0.06
"""Activations rounded to e4m3, which has 3 bits after the first: 2**-4 at most, 0.037 in the mean square, of each."""


class MatrixChecks:
    """Implements `CodedFormat`: reads as the declared format does, and checks what it reads."""

    def __init__(self, inner: CodedFormat, ops: Ops) -> None:
        self.inner, self._ops = inner, ops
        self.name, self.suffixes = inner.name, inner.suffixes
        self.reports: list[MatrixReport] = []
        self.zero_words: set[str] = set()
        """Of symmetric GPTQ, whose zero points are not read: what they are in each matrix, `V1`, `V2` or `VARIED`."""
        self._hash = sha256()

    def holds(self, module: str, tensors: RawTensors) -> bool:
        return self.inner.holds(module, tensors)

    def read(self, module: str, shape: tuple[int, int], tensors: RawTensors) -> CodedWeight:
        weight = self.inner.read(module, shape, tensors)
        dense = dequantize(weight)
        self._hash.update(f"{module} {shape[0]} {shape[1]}\n".encode())
        self._hash.update(dense.contiguous().numpy().tobytes())
        if isinstance(self.inner, GptqFormat) and f"{module}.qzeros" in tensors and isinstance(weight, IntWeight):
            self._note_words(weight, tensors.raw(f"{module}.qzeros"))
        error, bound = product_error(self._ops, weight, dense)
        self.reports.append(
            MatrixReport(
                module,
                kind_of(weight),
                shape,
                weight.nbytes,
                changed(self.inner, module, weight, tensors),
                error,
                bound,
            )
        )
        return weight

    def _note_words(self, weight: IntWeight, words: Tensor) -> None:
        if weight.zero is not None:
            return
        stored, middle = unpack(words, weight.bits, weight.out_features), 2 ** (weight.bits - 1)
        if bool((stored == middle - 1).all()):
            self.zero_words.add(V1)
        elif bool((stored == middle).all()):
            self.zero_words.add(V2)
        elif not bool((stored == stored[0, 0]).all()):
            self.zero_words.add(VARIED)

    def weights_sha256(self) -> str:
        return self._hash.hexdigest()


def kind_of(weight: CodedWeight) -> str:
    if isinstance(weight, IntWeight):
        whole = weight.group >= weight.in_features
        parts = [
            f"int{weight.bits}",
            "row" if whole else f"g{weight.group}",
            "" if weight.zero is None else "asym",
            "" if weight.columns is None else "act-order",
        ]
    elif isinstance(weight, FloatWeight):
        parts = ["fp8", "row" if weight.block is None else f"{weight.block[0]}x{weight.block[1]}"]
    else:
        parts = [weight.type]
    return " ".join(part for part in parts if part)


def product_error(ops: Ops, weight: CodedWeight, dense: Tensor) -> tuple[float, float]:
    """(relative error of `x @ W` in float32 for a normal `x`, what it may be)."""
    x = torch.randn(PROBE_ROWS, dense.shape[1], generator=torch.Generator().manual_seed(1))
    got = ops.linear(x, ops.pack_linear(weight, None, torch.float32)).double()
    wanted = x.double() @ dense.double().T
    norm = float(wanted.norm())
    error = float((got - wanted).norm()) / norm if norm > 0 else float(got.norm())
    return error if error == error else float("inf"), BOUND_FP8 if isinstance(weight, FloatWeight) else BOUND_INT8


def changed(format: CodedFormat, module: str, weight: CodedWeight, tensors: RawTensors) -> tuple[str, ...]:
    """Names of stored tensors that writing the neutral value again does not give bit for bit.

    Zero points that are never read (symmetric GPTQ) and those that GPTQModel wrote by whole words are left out.
    """
    written = _written(format, module, weight, tensors)
    left_out = set()
    if isinstance(format, GptqFormat) and isinstance(weight, IntWeight) and (weight.zero is None or format.whole_words):
        left_out.add(f"{module}.qzeros")
    return tuple(
        name.removeprefix(f"{module}.")
        for name, tensor in written.items()
        if name in tensors and name not in left_out and not _same(tensors.raw(name), tensor)
    )


def _written(format: CodedFormat, module: str, weight: CodedWeight, tensors: RawTensors) -> dict[str, Tensor]:
    if isinstance(weight, FloatWeight):
        return float_tensors(module, weight, weight.input_scale)
    assert isinstance(weight, IntWeight)
    if isinstance(format, AwqFormat):
        return awq_tensors(module, weight)
    if isinstance(format, GptqFormat):
        return gptq_tensors(module, weight, v2=format.v2)
    if f"{module}.weight_packed" in tensors:
        return packed_tensors(module, weight, tensors.raw(f"{module}.weight_scale").dtype)
    return byte_tensors(module, weight)


def _same(stored: Tensor, written: Tensor) -> bool:
    """Bit for bit; scales may be stored narrower than float32, and one for all rows."""
    if stored.dtype.is_floating_point and stored.itemsize > 1:
        again = written.to(stored.dtype)
        if stored.numel() == 1:
            return bool((again == stored).all())
        return stored.numel() == again.numel() and torch.equal(again.flatten(), stored.flatten())
    if stored.dtype is not written.dtype or stored.shape != written.shape:
        return False
    return torch.equal(stored.contiguous().view(torch.uint8), written.contiguous().view(torch.uint8))
