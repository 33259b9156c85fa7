"""AWQ as AutoAWQ's `gemm` layout stores it: 4-bit codes, packed along the outputs in the order 0 2 4 6 1 3 5 7.

`qweight` int32 `[in, out/8]`, `qzeros` int32 `[in/group, out/8]`, `scales` float16 `[in/group, out]`. The zero point is
the true one. Activation-aware Weight Quantization: arXiv 2306.00978.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.weights.formats.format import RawTensors, expect, group_size
from engine.weights.formats.words import pack, unpack
from kernels.contracts import IntWeight

NIBBLE_OF = (0, 4, 1, 5, 2, 6, 3, 7)
"""Output j of a word's eight lies in this nibble."""
OUTPUT_OF = (0, 2, 4, 6, 1, 3, 5, 7)
"""Nibble i of a word holds this one of its eight outputs."""


@dataclass(frozen=True, slots=True)
class AwqFormat:
    group: int | None
    name: str = "awq"
    suffixes: tuple[str, ...] = ("qweight", "qzeros", "scales")

    @classmethod
    def from_config(cls, given: Mapping[str, Any]) -> AwqFormat:
        """Raises UnsupportedModel for other layouts and widths, by name."""
        bits = given.get("bits", given.get("w_bit", 4))
        version = str(given.get("version", "gemm")).lower()
        backend = str(given.get("backend", "autoawq")).lower()
        if bits != 4:
            raise UnsupportedModel(f"AWQ with {bits!r:.16} bits is not read", hint="AWQ is read with 4 bits")
        if version != "gemm" or backend not in ("autoawq", "gemm", "auto", "gptqmodel"):
            raise UnsupportedModel(
                f"the AWQ layout {(version if version != 'gemm' else backend)[:32]!r} is not read",
                hint="convert the checkpoint to AutoAWQ's `gemm` layout, which most published ones have",
            )
        group = given.get("group_size", given.get("q_group_size"))
        return cls(group if isinstance(group, int) else None)

    def holds(self, module: str, tensors: RawTensors) -> bool:
        return f"{module}.qweight" in tensors

    def read(self, module: str, shape: tuple[int, int], tensors: RawTensors) -> IntWeight:
        outputs, inputs = shape
        words = -(-outputs // 8)
        scales = tensors.raw(f"{module}.scales")
        group = group_size(module, inputs, int(scales.shape[0]), self.group)
        groups = -(-inputs // group)
        expect(module, "scales", scales, (groups, outputs))
        qweight, zero = tensors.raw(f"{module}.qweight"), None
        expect(module, "qweight", qweight, (inputs, words))
        if f"{module}.qzeros" in tensors:
            qzeros = tensors.raw(f"{module}.qzeros")
            expect(module, "qzeros", qzeros, (groups, words))
            zero = sequential(qzeros, outputs).T.float().contiguous()
        codes = sequential(qweight, outputs).T.contiguous()
        return IntWeight(codes, scales.T.float().contiguous(), zero, 4, group)


def sequential(words: Tensor, outputs: int) -> Tensor:
    """uint8 `[rows, outputs]` in the order of the outputs."""
    nibbles = unpack(words, 4, words.shape[1] * 8).view(words.shape[0], -1, 8)
    return nibbles[..., torch.tensor(NIBBLE_OF)].flatten(1)[:, :outputs]


def interleaved(codes: Tensor) -> Tensor:
    """int32 `[rows, outputs/8]`: the inverse of `sequential`."""
    eights = codes.view(codes.shape[0], -1, 8)
    return pack(eights[..., torch.tensor(OUTPUT_OF)].flatten(1), 4)
