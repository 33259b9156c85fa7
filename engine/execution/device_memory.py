"""The share of a GPU's memory that is left for keys and values, and what to lower when it runs out.

Plain arithmetic over readings; bytes throughout. Who reads them, and runs the model for it, is `profile_run`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from typing import Literal

import torch

from engine.config import EngineConfig
from engine.errors import EngineFault

Stage = Literal["weights", "profile", "cache", "step"]
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_TRIED = re.compile(r"Tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)")
_MOVED = 64 << 20
"""A change of what others hold below this is noise of the driver."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Of one device: `free` and `total` of all processes, `reserved` by this process's allocator, and the most that
    was `allocated` from that at once since its peak was reset."""

    free: int
    total: int
    reserved: int
    peak: int

    @property
    def outside(self) -> int:
        """Held by other processes and by this one outside its allocator: context, kernels, libraries."""
        return self.total - self.free - self.reserved


@dataclass(frozen=True, slots=True)
class Budget:
    cache: int
    """For keys and values; 0 where there is nothing left."""
    warning: str | None = None


def cache_budget(utilization: float, before: Reading, after: Reading, reusable: int = 0, graphs: int = 0) -> Budget:
    """`utilization` of the device, less the most that weights and activations took together, graphs, and everything
    outside the allocator.

    `before` and `after` are read around a run of the largest step. `reusable` is what that run held in place of the
    cache. Where somebody else freed memory meanwhile, the smaller budget holds: they may take it again.
    """
    outside = max(before.outside, after.outside)
    left = int(after.total * utilization) - (after.peak - reusable) - outside - graphs
    warning = None
    if before.outside - after.outside > _MOVED:
        freed = (before.outside - after.outside) >> 20
        warning = f"another process freed {freed} MiB of the GPU while memory was measured; that is not counted on"
    return Budget(max(0, left), warning)


def asked_for(message: str) -> int | None:
    """The bytes that PyTorch could not allocate, from its message."""
    found = _TRIED.search(message)
    return ceil(float(found[1]) * _UNITS[found[2]]) if found else None


def what_to_lower(stage: Stage, config: EngineConfig, missing: int | None, total: int) -> str:
    """A hint: which setting, and to what. `missing` bytes were asked for on a device of `total`."""
    if stage == "weights":
        return "take a quantized checkpoint (AWQ, GPTQ, FP8) or a GPU with more memory; other processes on it count too"
    if stage == "profile":
        if config.max_num_batched_tokens > config.max_num_seqs:
            lower = max(config.max_num_seqs, config.max_num_batched_tokens // 2)
            return f"lower `--max-num-batched-tokens` from {config.max_num_batched_tokens} to {lower}"
        return f"lower `--max-num-seqs` from {config.max_num_seqs} to {max(1, config.max_num_seqs // 2)}"
    if stage == "cache" and config.kv_cache_bytes is not None:
        return f"lower `kv_cache_bytes` from {config.kv_cache_bytes}, or leave it out to have it measured"
    if stage == "cache" and config.num_kv_blocks is not None:
        return f"lower `num_kv_blocks` from {config.num_kv_blocks}, or leave it out to have it measured"
    share = max(missing or 0, total // 100) / total if total else 0.05
    lower_share = max(0.05, config.gpu_memory_utilization - ceil(share * 100) / 100)
    return f"lower `--gpu-memory-utilization` from {config.gpu_memory_utilization:g} to {lower_share:.2f}"


@contextmanager
def running_out(stage: Stage, config: EngineConfig, device: torch.device) -> Iterator[None]:
    """Raises EngineFault, with a hint of what to lower, where the device's memory runs out inside."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        total = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
        missing = asked_for(str(error))
        wanted = "" if missing is None else f", {missing >> 20} MiB more were asked for"
        what = {"weights": "loading the weights", "profile": "the largest step", "cache": "the KV cache"}
        raise EngineFault(
            f"the GPU ran out of memory in {what.get(stage, 'a step')}{wanted}",
            hint=what_to_lower(stage, config, missing, total),
        ) from error
