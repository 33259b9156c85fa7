"""The GPU architectures that kernels are compiled for, their limits, and which one a launch is for.

Limits: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability" (shared memory per block, opt-in).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.contracts import KernelError

KIB = 1024
MAX_REGISTERS = 255
INTERPRETED = 90
"""The interpreter computes what this one computes."""
FP8_FROM = 89
"""First compute capability whose tensor cores multiply e4m3, and for which Triton has the type."""


@dataclass(frozen=True, slots=True)
class Architecture:
    name: str
    capability: int
    """Compute capability times 10."""
    shared_bytes: int
    """Most shared memory of one block."""


ARCHITECTURES: dict[str, Architecture] = {
    name: Architecture(name, int(name.removeprefix("sm_")), shared * KIB)
    for name, shared in (("sm_80", 163), ("sm_86", 99), ("sm_89", 99), ("sm_90", 227), ("sm_100", 227), ("sm_120", 99))
}
_assumed: ContextVar[int | None] = ContextVar("assumed_capability", default=None)


def architecture(name: str) -> Architecture:
    """Raises KernelError for a name that is not known."""
    if name not in ARCHITECTURES:
        raise KernelError(f"architecture {name[:40]!r} is unknown; choose from {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]


@contextmanager
def assume(target: Architecture) -> Iterator[None]:
    """Within it, every device counts as this one: launches are recorded for it."""
    token = _assumed.set(target.capability)
    try:
        yield
    finally:
        _assumed.reset(token)


def capability(device: torch.device) -> int:
    """Compute capability times 10."""
    assumed = _assumed.get()
    if assumed is not None:
        return assumed
    if device.type != "cuda":
        return INTERPRETED
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor


def on_gpu(x: Tensor) -> bool:
    """Whether `x` lies, or is recorded as lying, on a GPU."""
    return x.is_cuda or x.is_meta
