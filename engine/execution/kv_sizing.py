"""The number of KV blocks a model gets, as plain arithmetic.

bytes per block = 2 (key and value) x layers x block_size x kv_heads x head_dim x bytes per element. The budget is
`kv_cache_bytes`; else `num_kv_blocks` blocks; else a quarter of the free RAM, at most 4 GiB, on a CPU, or what a run
of the largest step leaves of `gpu_memory_utilization` of the device (see `profile_run`).
Storage is touched only when it is first written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import torch

from engine.config import EngineConfig
from engine.errors import InvalidInput
from engine.model_config import ModelConfig

_CPU_SHARE, _CPU_CAP = 4, 4 << 30
_CGROUP, _MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_UNLIMITED = 1 << 62
"""Version 1 writes the largest multiple of a page when there is no limit."""


def block_bytes(model: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    return 2 * model.num_layers * block_size * model.num_kv_heads * model.head_dim * dtype.itemsize


def count_blocks(
    config: EngineConfig, model: ModelConfig, dtype: torch.dtype, measure: Callable[[], int] | None = None
) -> int:
    """`measure` gives the bytes that a GPU has left, and is called where nothing else says how many; None on a CPU.

    Raises InvalidInput when the budget does not hold one block.
    """
    size = block_bytes(model, config.block_size, dtype)
    if config.kv_cache_bytes is not None:
        blocks = config.kv_cache_bytes // size
        if blocks < 1:
            raise InvalidInput("kv_cache_bytes", config.kv_cache_bytes, f"one block of this model needs {size} bytes")
        return blocks
    if config.num_kv_blocks is not None:
        if config.num_kv_blocks < 1:
            raise InvalidInput("num_kv_blocks", config.num_kv_blocks, "must be at least 1")
        return config.num_kv_blocks
    if measure is None:
        return max(1, min(available_ram() // _CPU_SHARE, _CPU_CAP) // size)
    left = measure()
    if left < size:
        raise InvalidInput(
            "gpu_memory_utilization",
            config.gpu_memory_utilization,
            f"it leaves {left} bytes for keys and values, and one block of this model needs {size}",
            hint="raise it, lower `max_num_batched_tokens` or `max_num_seqs`, or free memory on the GPU",
        )
    return left // size


def available_ram() -> int:
    """Bytes that this process may still take: the machine's or the container's, whichever is less."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        lines = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines() if ":" in line)
        free = int(lines["MemAvailable"].split()[0]) * 1024
    return max(0, min([free, *_cgroup_rooms(_CGROUP, _MEMBERSHIP)]))


def _cgroup_rooms(root: Path, membership: Path) -> Iterator[int]:
    """The memory that each cgroup above this process still allows, of version 2 and 1; empty where none has a limit."""
    lines = membership.read_text(encoding="utf-8").splitlines() if membership.is_file() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        own = PurePosixPath(path.lstrip("/"))
        for group in (own, *own.parents):
            if not controllers:
                room = _room(root / group / "memory.max", root / group / "memory.current")
            elif "memory" in controllers.split(","):
                folder = root / "memory" / group
                room = _room(folder / "memory.limit_in_bytes", folder / "memory.usage_in_bytes")
            else:
                break
            if room is not None:
                yield room


def _room(limit: Path, used: Path) -> int | None:
    """None where there is no such group, or no limit (`max`, or version 1's huge number)."""
    try:
        most, taken = limit.read_text(encoding="ascii").strip(), used.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(most) - int(taken) if most.isdigit() and taken.isdigit() and int(most) < _UNLIMITED else None
