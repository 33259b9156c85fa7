"""A device whose results may be looked at only after they were fetched, and that counts how often that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.execution.host_copies import HostCopies

_LOOKS = ("tolist", "item", "__bool__", "__int__", "__float__", "__index__", "numpy", "cpu", "nonzero")


class WatchedResults(HostCopies):
    """Packs as on a GPU. A look at any other tensor, which would wait for a GPU, is an AssertionError."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), packed=True)
        self.fetches = 0
        self._fetched: set[int] = set()

    def fetch(self, parts: Sequence[Tensor]) -> list[Tensor]:
        self.fetches += 1
        return super().fetch(parts)

    def _bring(self, packed: Tensor) -> Tensor:
        host = packed.clone()
        self._fetched.add(host.untyped_storage().data_ptr())
        return host

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in _LOOKS:
            monkeypatch.setattr(torch.Tensor, name, self._guarded(name, getattr(torch.Tensor, name)))

    def _guarded(self, name: str, look: Any) -> Any:
        def guarded(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if tensor.untyped_storage().data_ptr() not in self._fetched:
                raise AssertionError(f"Tensor.{name} of a result that was not fetched")
            return look(tensor, *args, **kwargs)

        return guarded
