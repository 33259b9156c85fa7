"""Measures how well a model knows a text when its weights are read in a given way."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from engine.models.decoder import ForwardBatch
from engine.models.registry import load_model
from engine.models.source import WeightSource
from engine.text.tokenizer import ChatTokenizer
from engine.weights.formats.format import CodedFormat, RawTensors
from engine.weights.loader import Checkpoint, open_checkpoint
from kernels.contracts import CodedWeight, IntWeight, Ops

TEXT = (
    "We the People of the United States, in Order to form a more perfect Union, establish Justice, insure domestic "
    "Tranquility, provide for the common defence, promote the general Welfare, and secure the Blessings of Liberty to "
    "ourselves and our Posterity, do ordain and establish this Constitution for the United States of America."
)
"""In the public domain, and in every corpus."""
TOKENS = 96
BLOCK_SIZE = 16


class ZeroBias:
    """Implements `CodedFormat`: reads as another one does, and sums up how far codes are from their zero points."""

    def __init__(self, inner: CodedFormat) -> None:
        self._inner = inner
        self.name, self.suffixes = inner.name, inner.suffixes
        self._sum, self._count = 0.0, 0

    def holds(self, module: str, tensors: RawTensors) -> bool:
        return self._inner.holds(module, tensors)

    def read(self, module: str, shape: tuple[int, int], tensors: RawTensors) -> CodedWeight:
        weight = self._inner.read(module, shape, tensors)
        if isinstance(weight, IntWeight):
            middle = 2.0 ** (weight.bits - 1)
            sizes = torch.full((weight.scale.shape[1],), weight.group)
            sizes[-1] = weight.in_features - weight.group * (len(sizes) - 1)
            zeros = (
                middle * weight.codes.numel() if weight.zero is None else float((weight.zero.double() * sizes).sum())
            )
            self._sum += float(weight.codes.sum(dtype=torch.int64)) - zeros
            self._count += weight.codes.numel()
        return weight

    def mean(self) -> float | None:
        return self._sum / self._count if self._count else None


def probe_ids(checkpoint: Checkpoint) -> Tensor:
    """int64 tokens of `TEXT`, as the model's own tokenizer makes them."""
    return torch.tensor(ChatTokenizer.from_checkpoint(checkpoint).encode(TEXT, add_special_tokens=True)[:TOKENS])


def probe_loss(path: Path, format: CodedFormat, ids: Tensor, ops: Ops) -> float:
    """Mean negative log-likelihood in nats of the tokens after the first; infinity where it is no number.

    The model is loaded for it and dropped. Raises what loading raises.
    """
    checkpoint = open_checkpoint(path)
    checkpoint.format = format
    model = load_model(WeightSource(checkpoint, ops, torch.device("cpu"), torch.float32))
    config, rows = model.config, len(ids)
    blocks = -(-rows // BLOCK_SIZE)
    caches = [
        ops.allocate_kv_cache(blocks, BLOCK_SIZE, config.num_kv_heads, config.head_dim, torch.float32, "cpu")
        for _ in range(config.num_layers)
    ]
    model.bind(caches, rows)
    plan = ops.plan_attention(
        torch.tensor([0, rows], dtype=torch.int32),
        torch.tensor([rows], dtype=torch.int32),
        torch.arange(blocks, dtype=torch.int32).view(1, -1),
        BLOCK_SIZE,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
    )
    places = torch.arange(rows)
    hidden = model.forward(ForwardBatch(ids, places, places.clone(), plan))
    logits = model.logits(model.last_norm(hidden))[:-1]
    loss = float(torch.nn.functional.cross_entropy(logits, ids[1:]))
    return loss if loss == loss else float("inf")
