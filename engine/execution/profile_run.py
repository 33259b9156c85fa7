"""The largest step a configuration allows, run once before the KV cache has its size, to see what memory it takes."""

from __future__ import annotations

import logging

import torch

from engine.config import EngineConfig
from engine.execution.device_memory import Reading, cache_budget, running_out
from engine.models.decoder import Decoder, ForwardBatch
from kernels.contracts import Ops

log = logging.getLogger(__name__)


def measure_cache_budget(
    config: EngineConfig, ops: Ops, model: Decoder, dtype: torch.dtype, device: torch.device, window: int
) -> int:
    """Bytes of a CUDA device that are left for keys and values of `dtype`. Leaves `model` bound to no usable cache.

    Raises EngineFault where the device cannot run the step.
    """
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = _read(device)
    with running_out("profile", config, device):
        held = run_largest_step(config, ops, model, dtype, device, window)
        torch.cuda.synchronize(device)
    budget = cache_budget(config.gpu_memory_utilization, before, _read(device), reusable=held)
    torch.cuda.empty_cache()
    if budget.warning is not None:
        log.warning(budget.warning)
    return budget.cache


def run_largest_step(
    config: EngineConfig, ops: Ops, model: Decoder, dtype: torch.dtype, device: torch.device, window: int
) -> int:
    """A step of `max_num_batched_tokens` rows and `max_num_seqs` samples, on meaningless numbers; the bytes of the
    cache that it read from. All sequences share its blocks and all layers share it, so that it is small."""
    shape = model.config
    rows, sequences = step_size(config, window)
    each = -(-rows // sequences)
    blocks = -(-each // config.block_size)
    cache = ops.allocate_kv_cache(blocks, config.block_size, shape.num_kv_heads, shape.head_dim, dtype, device)
    with torch.inference_mode():
        model.bind([cache] * shape.num_layers, window)
        starts = torch.arange(sequences + 1, device=device).mul_(each).clamp_(max=rows).to(torch.int32)
        lengths = starts.diff()
        tables = torch.arange(blocks, dtype=torch.int32, device=device).repeat(sequences, 1)
        plan = ops.plan_attention(
            starts, lengths, tables, config.block_size, shape.num_heads, shape.num_kv_heads, shape.head_dim
        )
        ids = torch.zeros(rows, dtype=torch.int64, device=device)
        positions = torch.arange(rows, device=device) % each
        slots = positions.clone()
        hidden = model.forward(ForwardBatch(ids, positions, slots, plan))
        last = hidden[: min(rows, config.max_num_seqs)]
        logits = model.logits(model.last_norm(last))
        count = len(logits)
        ones, ids = torch.ones(count, device=device), ids[:count]
        top_k = torch.full((count,), 50, dtype=torch.int32, device=device)
        chosen = ops.sample(logits, ones, top_k, ones * 0.9, ones * 0.0, ops.philox_uniform(ids, ids))
        ops.row_stats(logits, chosen, 1)
    return cache.nbytes


def step_size(config: EngineConfig, window: int) -> tuple[int, int]:
    """(rows, sequences): all rows that a step may have, in as few sequences as the window lets it, which is where
    attention reads most."""
    sequences = min(config.max_num_seqs, -(-config.max_num_batched_tokens // window))
    return min(config.max_num_batched_tokens, sequences * window), sequences


def _read(device: torch.device) -> Reading:
    free, total = torch.cuda.mem_get_info(device)
    return Reading(free, total, torch.cuda.memory_reserved(device), torch.cuda.max_memory_allocated(device))
