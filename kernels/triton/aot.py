"""Compiles variants without a GPU, through the same code that compiles at a launch, so that a launch finds them.

Triton keeps compiled kernels in a folder (`TRITON_CACHE_DIR`) under a hash of source, signature, constants, options and
architecture. A driver that only says which architecture it is stands in for the GPU.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import MockTensor

from kernels.contracts import KernelError
from kernels.triton.launch import TYPES, Kernel, Variant
from kernels.triton.target import MAX_REGISTERS, Architecture

_DTYPES = {name: dtype for dtype, name in TYPES.items()}
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)")


@dataclass(frozen=True, slots=True)
class Compiled:
    """One variant for one architecture. `spill_bytes` per thread, `shared_bytes` per block."""

    variant: Variant
    architecture: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    tensor_cores: tuple[str, ...]
    """Matrix instructions in its PTX: `mma`, `wgmma`, `tcgen05`."""
    sha256: str
    """Of the cubin."""

    def faults(self, target: Architecture) -> list[str]:
        """What is beyond the limits of the architecture, so that it could not run. A spill runs, and slowly."""
        found = []
        if self.registers > MAX_REGISTERS:
            found.append(f"needs {self.registers} registers, {MAX_REGISTERS} exist")
        if self.shared_bytes > target.shared_bytes:
            found.append(f"needs {self.shared_bytes} bytes of shared memory, {target.name} has {target.shared_bytes}")
        return found


class AssumedDriver:
    """What Triton asks of a driver before it compiles."""

    def __init__(self, target: Architecture) -> None:
        self._target = GPUTarget("cuda", target.capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return int(self._target.arch)  # one cache of kernels per architecture

    def get_current_stream(self, device: int) -> int:
        return device


@contextmanager
def assumed_driver(target: Architecture) -> Iterator[None]:
    """Raises KernelError where kernels are interpreted, since these cannot be compiled."""
    if triton.knobs.runtime.interpret:
        raise KernelError("kernels are interpreted in this process: unset TRITON_INTERPRET to compile them")
    driver = triton.runtime.driver
    before = driver._active
    driver.set_active(AssumedDriver(target))
    try:
        yield
    finally:
        driver._active = before


def kernel_of(variant: Variant) -> Kernel:
    module, _, name = variant.kernel.rpartition(".")
    found = getattr(importlib.import_module(f"kernels.triton.{module}"), name)
    assert isinstance(found, Kernel)
    return found


def compile_variant(variant: Variant, target: Architecture) -> Compiled:
    """Compile it, or find it in the cache folder. Raises KernelError with the reason where it cannot be compiled."""
    kernel = kernel_of(variant)
    arguments: dict[str, Any] = dict(variant.constants)
    for name, kind in variant.signature:
        arguments[name] = MockTensor(_DTYPES[kind[1:]]) if kind.startswith("*") else (0.5 if kind == "fp32" else 3)
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages}
    with assumed_driver(target):
        try:
            built = kernel.function.warmup(grid=(1,), **arguments, **options)
        except Exception as error:
            # Triton's front end, LLVM and ptxas raise types that have nothing in common.
            raise KernelError(f"{describe(variant)} does not compile for {target.name}: {first_line(error)}") from error
    cubin: bytes = built.asm["cubin"]
    registers, spills = _resources(cubin)
    found = tuple(name for name in ("wgmma", "tcgen05", "mma") if name in built.asm["ptx"])
    digest = hashlib.sha256(cubin).hexdigest()
    return Compiled(variant, target.name, registers, spills, int(built.metadata.shared), found, digest)


def _resources(cubin: bytes) -> tuple[int, int]:
    """(registers, bytes of stack) of a cubin."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    found = _RESOURCES.search(done.stdout)
    if found is None:
        raise KernelError(f"cuobjdump says nothing of registers: {done.stdout[:200]!r}")
    return int(found[1]), int(found[2])


def describe(variant: Variant) -> str:
    """One line for people: the kernel, its types and what differs between its variants."""
    types = ",".join(dict.fromkeys(kind for _, kind in variant.signature if kind.startswith("*")))
    constants = ",".join(f"{name}={value}" for name, value in variant.constants if value is not None)
    return f"{variant.kernel}[{types}; {constants}; warps={variant.num_warps},stages={variant.num_stages}]"


def first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {(lines or [''])[-1][:200]}"
