"""Numbers between a device and Python: results come down in one copy and one wait, small lists go up without waiting.

On a CPU nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class HostCopies:
    """`packed`: whether results are packed, which is so on a GPU unless given."""

    def __init__(self, device: torch.device, packed: bool | None = None) -> None:
        self._device = device
        self.packed = device.type != "cpu" if packed is None else packed
        """Whether a look at a result costs a wait for the device, so that results are better looked at together."""

    def fetch(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """The tensors on the host. The only place where a step of decodes waits for the device."""
        return unpack(self._bring(pack(parts)), parts) if self.packed else list(parts)

    def send(self, values: Sequence[int], dtype: torch.dtype = torch.int64) -> Tensor:
        """On a GPU from pinned memory, which PyTorch's allocator keeps until the copy out of it has ended."""
        if self._device.type == "cpu":
            return torch.tensor(values, dtype=dtype)
        return torch.tensor(values, dtype=dtype, pin_memory=True).to(self._device, non_blocking=True)

    def move(self, values: Tensor) -> Tensor:
        """A tensor of the host that nobody else writes to, on the device."""
        if self._device.type == "cpu":
            return values
        return values.pin_memory().to(self._device, non_blocking=True)

    def _bring(self, packed: Tensor) -> Tensor:
        return packed.cpu()


def pack(parts: Sequence[Tensor]) -> Tensor:
    """The bits of all parts in one uint8 tensor, wide elements first, so that each part is aligned."""
    return torch.cat([parts[index].contiguous().flatten().view(torch.uint8) for index in _order(parts)])


def unpack(packed: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The parts that were packed; of `like` only shapes and types are read."""
    found: dict[int, Tensor] = {}
    start = 0
    for index in _order(like):
        part = like[index]
        size = part.numel() * part.dtype.itemsize
        found[index] = packed[start : start + size].view(part.dtype).view(part.shape)
        start += size
    return [found[index] for index in range(len(like))]


def _order(parts: Sequence[Tensor]) -> list[int]:
    return sorted(range(len(parts)), key=lambda index: -parts[index].dtype.itemsize)
