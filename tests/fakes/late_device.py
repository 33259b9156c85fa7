"""A device that is always late: a copy is read only when somebody waits for it, or when a kernel runs.

Its memory is ordinary memory. It shows a host buffer that was written again before the device had read it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class LateDevice:
    def __init__(self) -> None:
        self.copies = 0
        self.waits = 0
        """Times that the host had to wait for work that was still open."""
        self._open: list[Callable[[], object]] = []
        self._done = 0

    def pinned(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.uint8)

    def memory(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.uint8)

    def copy(self, target: Tensor, source: Tensor) -> None:
        self.copies += 1
        self._open.append(lambda: target.copy_(source))

    def run(self, kernel: Callable[[], object]) -> None:
        """Asked for now, done later, after everything that was asked for before."""
        self._open.append(kernel)

    def event(self) -> LateEvent:
        return LateEvent(self)

    def asked(self) -> int:
        return self._done + len(self._open)

    def catch_up(self, until: int | None = None) -> None:
        """Do what was asked for, the first `until` pieces of it or all."""
        while self._open and (until is None or self._done < until):
            self._open.pop(0)()
            self._done += 1

    def wait(self, until: int) -> None:
        if self._done < until:
            self.waits += 1
            self.catch_up(until)


class LateEvent:
    def __init__(self, device: LateDevice) -> None:
        self._device, self._position = device, 0

    def record(self) -> None:
        self._position = self._device.asked()

    def synchronize(self) -> None:
        self._device.wait(self._position)
