"""Capture of what the products of a decoder layer are given by a calibration text: Hessians and mean magnitudes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels.contracts import DecoderLayer, KVCache, Ops, PackedLinear
from kernels.reference.decoder import decoder_stack, pack_stack

BLOCK_SIZE = 16


@dataclass(slots=True)
class Inputs:
    """Sums over the rows that a product was given."""

    hessian: Tensor
    magnitudes: Tensor
    rows: int = 0

    @classmethod
    def of(cls, width: int) -> Inputs:
        return cls(torch.zeros(width, width), torch.zeros(width))

    def add(self, x: Tensor) -> None:
        wide = x.float()
        self.hessian.addmm_(wide.T, wide)
        self.magnitudes += wide.abs().sum(dim=0)
        self.rows += x.shape[0]

    def mean_magnitudes(self) -> Tensor:
        return self.magnitudes / max(1, self.rows)


class CapturingOps:
    """The ops of a back end, of which `linear` also adds its input to `inputs`, by the identity of its weight."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self.inputs: dict[int, Inputs] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(self._ops, name)
        return function

    def linear(
        self, x: Tensor, packed: PackedLinear, out_dtype: torch.dtype | None = None, out: Tensor | None = None
    ) -> Tensor:
        if id(packed) in self.inputs:
            self.inputs[id(packed)].add(x)
        return self._ops.linear(x, packed, out_dtype, out)


@dataclass(slots=True)
class Batch:
    """Windows of a text on their way through the layers, each a sequence of `length` tokens."""

    ops: Ops
    hidden: Tensor
    """float32 `[windows * length, hidden]`."""
    length: int
    cos: Tensor
    sin: Tensor
    _caches: dict[tuple[int, int], KVCache] = field(default_factory=dict)

    def run(self, layer: DecoderLayer, ops: Ops | None = None) -> Tensor:
        """What the layer makes of the hidden states, float32; they stay as they are."""
        ops = ops or self.ops
        rows = self.hidden.shape[0]
        windows = rows // self.length
        each = -(-self.length // BLOCK_SIZE)
        cache = self._cache(layer, windows * each)
        tables = torch.arange(windows * each, dtype=torch.int32).view(windows, each)
        places = torch.arange(self.length)
        slots = (tables.long()[:, places // BLOCK_SIZE] * BLOCK_SIZE + places % BLOCK_SIZE).flatten()
        plan = ops.plan_attention(
            torch.arange(windows + 1, dtype=torch.int32) * self.length,
            torch.full((windows,), self.length, dtype=torch.int32),
            tables,
            BLOCK_SIZE,
            layer.num_heads,
            layer.num_kv_heads,
            layer.head_dim,
        )
        stack = pack_stack([layer], [cache], self.cos, self.sin)
        run = partial(decoder_stack, ops=ops)
        mixed, residual = run(self.hidden.clone(), stack, plan, places.repeat(windows), slots)
        return mixed + residual

    def capture(self, layer: DecoderLayer, products: Sequence[PackedLinear]) -> list[Inputs]:
        """The inputs of some products of the layer, in order."""
        ops = CapturingOps(self.ops)
        ops.inputs = {id(product): Inputs.of(product.in_features) for product in products}
        self.run(layer, ops)  # type: ignore[arg-type]
        return [ops.inputs[id(product)] for product in products]

    def _cache(self, layer: DecoderLayer, blocks: int) -> KVCache:
        shape = (layer.num_kv_heads, layer.head_dim)
        if shape not in self._caches:
            self._caches[shape] = self.ops.allocate_kv_cache(blocks, BLOCK_SIZE, *shape, torch.float32, "cpu")
        return self._caches[shape]
