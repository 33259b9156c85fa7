"""All integers of a step in one piece of memory, so that one copy takes them to a GPU.

Fields lie at fixed, aligned offsets, so that views of the device's memory are valid in every step. The host's array is
copied to one of two pinned buffers and from there to the device without waiting; a pinned buffer is written again only
after the copy out of it is known to have ended. On a CPU the host's array itself is read and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

ALIGNMENT = 256
"""Bytes; what CUDA's allocator aligns to, so that no kernel is specialized for a field's address."""
_PINNED_BUFFERS = 2


class Event(Protocol):
    """A point in the order of a device's work."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


class Device(Protocol):
    """What an upload needs of a device. Copies and kernels run in the order in which they were asked for."""

    def pinned(self, size: int) -> Tensor:
        """uint8 [size] on the host, which the device reads directly."""
        ...

    def memory(self, size: int) -> Tensor:
        """uint8 [size] on the device, zeros."""
        ...

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Returns before `source`, a pinned buffer, has been read."""
        ...

    def event(self) -> Event: ...


class CudaDevice:
    """The current stream of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def pinned(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.uint8, pin_memory=True)

    def memory(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.uint8, device=self._device)

    def copy(self, target: Tensor, source: Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def event(self) -> Event:
        return torch.cuda.Event()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class Field:
    """Where one array lies: `offset` in bytes, `size` in elements."""

    offset: int
    size: int
    dtype: torch.dtype

    def view(self, memory: Tensor) -> Tensor:
        return memory[self.offset : self.offset + self.size * self.dtype.itemsize].view(self.dtype)

    def end(self, used: int) -> int:
        """The byte after the first `used` elements."""
        return self.offset + used * self.dtype.itemsize


def lay_out(sizes: Mapping[str, tuple[int, torch.dtype]]) -> tuple[dict[str, Field], int]:
    """Fields in the given order, each aligned, and the bytes of all."""
    fields, offset = {}, 0
    for name, (size, dtype) in sizes.items():
        fields[name] = Field(offset, size, dtype)
        offset += -(-size * dtype.itemsize // ALIGNMENT) * ALIGNMENT
    return fields, offset


class StepBuffer:
    """`host` is written by the caller; `device` is what kernels read: the same memory where `device` is None."""

    def __init__(self, sizes: Mapping[str, tuple[int, torch.dtype]], device: Device | None) -> None:
        self.fields, self.size = lay_out(sizes)
        memory = torch.zeros(self.size, dtype=torch.uint8)
        self.host = {name: field.view(memory) for name, field in self.fields.items()}
        self._memory, self._device, self._turn = memory, device, 0
        if device is None:
            self.device = self.host
            return
        self._twin = device.memory(self.size)
        self.device = {name: field.view(self._twin) for name, field in self.fields.items()}
        self._pinned = [(device.pinned(self.size), device.event()) for _ in range(_PINNED_BUFFERS)]

    def upload(self, last: str, used: int) -> None:
        """Copy everything up to the first `used` elements of the field `last`. Does not wait for the device, unless
        it is more steps behind than there are pinned buffers."""
        if self._device is None:
            return
        pinned, event = self._pinned[self._turn]
        self._turn = (self._turn + 1) % _PINNED_BUFFERS
        event.synchronize()
        end = self.fields[last].end(used)
        pinned[:end].copy_(self._memory[:end])
        self._device.copy(self._twin[:end], pinned[:end])
        event.record()
