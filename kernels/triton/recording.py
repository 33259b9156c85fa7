"""Records which variants a piece of work launches, on the device `meta`, whose tensors have shapes and no numbers.

What is recorded is what runs, since the same wrappers choose it. An op that had to look at a number on the host, and so
would stop the stream of a GPU, cannot be recorded: torch refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kernels.contracts import Ops, PackedExperts, PackedLinear, Weight
from kernels.triton.launch import OBSERVERS, Variant
from kernels.triton.target import Architecture, assume

META = torch.device("meta")


@contextmanager
def recorded(target: Architecture) -> Iterator[set[Variant]]:
    """The variants that are launched within it, as they would be on `target`."""
    seen: set[Variant] = set()
    OBSERVERS.add(seen.add)
    try:
        with assume(target):
            yield seen
    finally:
        OBSERVERS.remove(seen.add)


class RecordedOps:
    """Triton's ops for a model that is only recorded: weights are packed, and then their numbers are dropped."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(self._ops, name)
        return function

    def embedding(self, ids: Tensor, table: Weight, dtype: torch.dtype | None = None) -> Tensor:
        if isinstance(table, Tensor):
            return self._ops.embedding(ids, table, dtype)
        return torch.empty(ids.shape[0], table.in_features, dtype=dtype or torch.float32, device=META)

    def pack_linear(self, *arguments: Any, **options: Any) -> PackedLinear:
        packed = self._ops.pack_linear(*arguments, **options)
        return replace(packed, data=without_numbers(packed.data), bias=without_numbers(packed.bias))

    def pack_experts(self, *arguments: Any, **options: Any) -> PackedExperts:
        packed = self._ops.pack_experts(*arguments, **options)
        return replace(packed, data=without_numbers(packed.data))


def without_numbers(value: Any) -> Any:
    """The same value with tensors on `meta`."""
    if isinstance(value, Tensor):
        return value.to(META)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: without_numbers(getattr(value, field.name)) for field in fields(value)})
    return value
