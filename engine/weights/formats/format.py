"""The interface of a quantized checkpoint format, and the order of act-order columns that two of them store."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from engine.errors import UnsupportedModel, WeightsMismatch
from kernels.contracts import CodedWeight


class RawTensors(Protocol):
    """Tensors of a checkpoint by name, in the dtype that they are stored in. Numbers are finite."""

    def __contains__(self, name: str) -> bool: ...

    def raw(self, name: str) -> Tensor: ...


class CodedFormat(Protocol):
    """What a `quantization_config` says. Values of one format are frozen and know no file."""

    @property
    def name(self) -> str:
        """vLLM's name of the method, as in `--quantization`."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Names of the tensors that one matrix is stored in, after `module.`."""

    def holds(self, module: str, tensors: RawTensors) -> bool:
        """Whether the matrix of `module` is stored quantized: the file decides, not the configuration's list."""

    def read(self, module: str, shape: tuple[int, int], tensors: RawTensors) -> CodedWeight:
        """The matrix `[out, in]` of `module`.

        Raises WeightsMismatch where tensors do not fit `shape` or each other, UnsupportedModel for what is not read.
        """


def expect(module: str, what: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise WeightsMismatch(f"{module}.{what} has shape {str(tuple(tensor.shape))[:80]}, expected {shape}")


def group_size(module: str, inputs: int, groups: int, named: int | None) -> int:
    """Inputs per group of a matrix whose scales are `groups` wide; `named` by the configuration, None or -1: any."""
    if named is not None and named > 0:
        if -(-inputs // named) != groups:
            raise WeightsMismatch(f"{module}: {groups} groups of scales, but {inputs} inputs in groups of {named}")
        return named
    if groups < 1 or inputs % groups:
        raise WeightsMismatch(f"{module}: {groups} groups of scales do not fit {inputs} inputs")
    return inputs // groups


def column_order(module: str, index: Tensor, inputs: int, group: int) -> Tensor | None:
    """int64 `[in]`, the columns sorted by group, for `IntWeight.columns`; None where they are in order already.

    `index` holds the group of every input (`g_idx`). Raises UnsupportedModel where groups are not all of one size.
    """
    expect(module, "g_idx", index, (inputs,))
    wanted = torch.arange(inputs) // group
    if torch.equal(index.long(), wanted):
        return None
    order = index.long().argsort(stable=True)
    if not torch.equal(index.long()[order], wanted):
        raise UnsupportedModel(
            f"{module}: the groups of g_idx are not {group} inputs each", hint="quantize the model again"
        )
    return order
