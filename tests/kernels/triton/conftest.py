"""Triton's kernels beside the reference: in its interpreter, and compiled where there is a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernels import dispatch
from kernels.contracts import Ops


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("gpu")


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="session")
def triton_ops(device: torch.device) -> Ops:
    pytest.importorskip("triton")
    return dispatch.load("triton", device=device)
