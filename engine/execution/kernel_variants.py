"""The kernel variants that a model needs: its forward pass and its sampling, recorded without numbers.

Steps differ in rows and sequences. Kernels are chosen by a few thresholds of both, so a step on either side of each is
recorded; `tests/engine/execution/test_kernel_variants.py` holds that no other step launches another variant.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.execution.device import kv_dtype
from engine.model_config import MoeParameters
from engine.models.decoder import Decoder, ForwardBatch
from engine.models.registry import load_model
from engine.models.source import WeightSource
from engine.weights.loader import Checkpoint
from engine.weights.quantized import quantization_on_load
from kernels import dispatch
from kernels.contracts import Ops

if TYPE_CHECKING:
    from kernels.triton.launch import Variant
    from kernels.triton.target import Architecture

_META = torch.device("meta")
_ROWS = (1, 2, 8, 16, 17, 64, 65, 128, 129, 255, 256)
"""On both sides of what the products, and the splitting of keys, are chosen by."""


def variants_of(
    checkpoint: Checkpoint, config: EngineConfig, dtype: torch.dtype, target: Architecture
) -> frozenset[Variant]:
    """What serving `checkpoint` with `config` launches on `target`. Reads weights only where they are quantized.

    Raises what loading raises, and KernelError where Triton is not installed.
    """
    loaded = dispatch.load("triton", _META, deterministic=config.deterministic)
    from kernels.triton.recording import RecordedOps, recorded

    ops = cast(Ops, RecordedOps(loaded))
    quantization = quantization_on_load(config.quantization, checkpoint.format)
    with torch.inference_mode(), recorded(target) as seen:
        model = load_model(WeightSource(checkpoint, ops, _META, dtype, quantization))
        caches = [
            ops.allocate_kv_cache(
                1, config.block_size, model.config.num_kv_heads, model.config.head_dim, kv_dtype(config, dtype), _META
            )
            for _ in range(model.config.num_layers)
        ]
        model.bind(caches, model.config.max_position_embeddings)
        for rows, sequences in steps(config, model.config.moe):
            run_step(ops, model, config.block_size, rows, sequences)
        sample_once(ops, model.config.vocab_size)
    return frozenset(seen)


def steps(config: EngineConfig, moe: MoeParameters | None) -> Iterator[tuple[int, int]]:
    """(rows, sequences): all decodes, one long chunk, and chunks of a few rows each."""
    most = config.max_num_batched_tokens
    bounds: tuple[int, ...] = (*_ROWS, config.max_num_seqs, most)
    if moe is not None:
        # Experts go by the rows that each of them gets on average, and by whether there are enough to sort.
        shared = [rows * moe.num_experts // moe.experts_per_token for rows in (16, 64)]
        few = moe.num_experts // (4 * moe.experts_per_token)
        bounds += (*shared, *(rows + 1 for rows in shared), max(few, 1), few + 1)
    for rows in sorted({min(rows, most) for rows in bounds}):
        for sequences in sorted({1, max(1, rows // 8), rows // 8 + 1, rows}):
            if sequences <= min(rows, config.max_num_seqs):
                yield rows, sequences


def run_step(ops: Ops, model: Decoder, block_size: int, rows: int, sequences: int) -> None:
    config = model.config
    plan = ops.plan_attention(
        _empty(sequences + 1, dtype=torch.int32),
        _empty(sequences, dtype=torch.int32),
        _empty(sequences, 1, dtype=torch.int32),
        block_size,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
    )
    ids, positions, slots = (_empty(rows, dtype=torch.int64) for _ in range(3))
    hidden = model.forward(ForwardBatch(ids, positions, slots, plan))
    model.logits(model.last_norm(hidden))


def sample_once(ops: Ops, vocabulary: int) -> None:
    """What follows the logits; no number of rows makes another variant of it."""
    logits, ids = _empty(1, vocabulary), _empty(1, dtype=torch.int64)
    one = _empty(1)
    uniforms = ops.philox_uniform(ids, ids)
    ops.greedy(logits)
    ops.sample(logits, one, _empty(1, dtype=torch.int32), one, one, uniforms)
    for topk in (0, 1):
        ops.row_stats(logits, ids, topk)
    ops.apply_token_bitmask(logits, _empty(1, -(-vocabulary // 32), dtype=torch.int32), ids)
    ops.apply_penalties(logits, ids, _empty(2, dtype=torch.int64), ids, one, one, one, one)


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=_META)
