"""Every launch of a Triton kernel goes through `launch`, so that what runs can be listed, compiled ahead and counted.

The rules that make the set of variants finite: numbers of the model (widths, strides, heads, block sizes) are
constants, from which the compiler sees how much it can load at once; numbers of a step (rows, lengths) are `i64` or
`i32` arguments, which no value specializes; pointers are aligned to 16 bytes. A variant is then a kernel, the types of
its arguments, its constants and how it is scheduled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.contracts import KernelError

if TYPE_CHECKING:
    Pointer = Any
    Block = Any
    i32 = int
    i64 = int
    f32 = float
else:
    # Names in a kernel's source must be constants of Triton, those of annotations included.
    Pointer, Block, i32, i64, f32 = (tl.constexpr(name) for name in ("pointer", "block", "i32", "i64", "fp32"))
Constant = int | float | bool | str | None
Argument = Tensor | int | float | None
ALIGNMENT = 16
"""Bytes. Triton compiles other code for pointers that are aligned: what is compiled ahead assumes it."""
TYPES: dict[torch.dtype, str] = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "i1",
}
SCALARS = {"i64": "i64", "i32": "i32", "f32": "fp32"}
"""Annotation -> Triton's type."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a kernel is compiled: warps of 32 threads a program, and stages of its pipelined loop."""

    num_warps: int = 4
    num_stages: int = 3


@dataclass(frozen=True, slots=True)
class Variant:
    """One compilation. `signature` has a type per argument that is no constant (`*bf16`, `i64`, `fp32`)."""

    kernel: str
    """`module.function` below `kernels.triton`."""
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Constant], ...]
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """A Triton function and what its annotations say about each argument."""

    name: str
    function: Any
    scalars: dict[str, str]
    """Argument -> Triton's type, of those that are no pointer and no constant."""
    pointers: tuple[str, ...]

    def variant(self, dtypes: dict[str, torch.dtype], constants: dict[str, Constant], schedule: Schedule) -> Variant:
        """What launching with tensors of these dtypes compiles. A pointer without a dtype is absent: None."""
        absent = {name: None for name in self.pointers if name not in dtypes}
        signature = {name: f"*{TYPES[dtype]}" for name, dtype in dtypes.items()} | self.scalars
        return Variant(
            self.name,
            tuple(sorted(signature.items())),
            tuple(sorted((constants | absent).items())),
            schedule.num_warps,
            schedule.num_stages,
        )


def kernel(function: Callable[..., None]) -> Kernel:
    """Decorator of a Triton kernel. Arguments: `Pointer`, `i32`, `i64`, `f32` or `tl.constexpr`; values in functions
    that kernels call: `Block`."""
    annotations = {name: str(kind) for name, kind in function.__annotations__.items() if name != "return"}
    scalars = {name: SCALARS[kind] for name, kind in annotations.items() if kind in SCALARS}
    # Triton reads a type by its own name.
    function.__annotations__ |= scalars
    return Kernel(
        name=f"{function.__module__.removeprefix('kernels.triton.')}.{function.__name__}",
        function=triton.jit(function, do_not_specialize=list(scalars)),
        scalars=scalars,
        pointers=tuple(name for name, kind in annotations.items() if kind == "Pointer"),
    )


def device_function(function: Callable[..., Any]) -> Any:
    """Decorator of a function that kernels call."""
    return triton.jit(function)


def aligned(x: Tensor) -> Tensor:
    """`x` itself, or a copy where it lies in pieces or at an odd place: for small arguments that may be slices."""
    return x.contiguous() if x.data_ptr() % ALIGNMENT == 0 else x.clone(memory_format=torch.contiguous_format)


Observer = Callable[[Variant], None]


class Observers:
    """Called with the variant of each launch before it runs: the guard against late compiles, and tests."""

    def __init__(self) -> None:
        self._observers: tuple[Observer, ...] = ()

    def add(self, observer: Observer) -> None:
        self._observers = (*self._observers, observer)

    def remove(self, observer: Observer) -> None:
        self._observers = tuple(one for one in self._observers if one is not observer)

    def see(self, variant: Callable[[], Variant]) -> None:
        if self._observers:
            found = variant()
            for observer in self._observers:
                observer(found)


OBSERVERS = Observers()
DEFAULT = Schedule()


def launch(
    run: Kernel,
    grid: Sequence[int],
    arguments: dict[str, Argument],
    constants: dict[str, Constant],
    schedule: Schedule = DEFAULT,
) -> None:
    """Run the kernel on `grid` programs; an empty grid runs none. `arguments` are tensors, None for absent ones, and
    scalars. Raises KernelError for a tensor that is not aligned. With tensors of the device `meta`, which have no
    numbers, the launch is seen by observers alone.
    """
    if 0 in grid:
        return
    for name, value in arguments.items():
        if isinstance(value, Tensor) and value.data_ptr() % ALIGNMENT:
            raise KernelError(f"{run.name}: {name} does not start at a multiple of {ALIGNMENT} bytes")

    def variant() -> Variant:
        dtypes = {name: value.dtype for name, value in arguments.items() if isinstance(value, Tensor)}
        return run.variant(dtypes, constants, schedule)

    OBSERVERS.see(variant)
    if any(isinstance(value, Tensor) and value.is_meta for value in arguments.values()):
        return
    run.function[tuple(grid)](**arguments, **constants, num_warps=schedule.num_warps, num_stages=schedule.num_stages)
