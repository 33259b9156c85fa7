"""Launches tell which variant they run, and nothing of a step makes another one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("triton")

from kernels.contracts import Ops
from kernels.triton.launch import OBSERVERS, Variant


@pytest.fixture
def seen() -> Iterator[list[Variant]]:
    variants: list[Variant] = []
    OBSERVERS.add(variants.append)
    yield variants
    OBSERVERS.remove(variants.append)


def test_numbers_of_a_step_make_no_other_variant(triton_ops: Ops, device: torch.device, seen: list[Variant]) -> None:
    weight = torch.ones(64, device=device)
    for rows, eps in ((1, 1e-6), (16, 1e-5), (3, 1e-6)):
        triton_ops.rms_norm(torch.randn(rows, 64, device=device), weight, eps)
    assert len(seen) == 3
    assert len(set(seen)) == 1
    assert seen[0].kernel == "rms_norm.normalize_rows"
    assert ("x", "*fp32") in seen[0].signature
    assert ("eps", "fp32") in seen[0].signature
    assert ("residual", None) in seen[0].constants


def test_dtypes_and_widths_do(triton_ops: Ops, device: torch.device, seen: list[Variant]) -> None:
    for width, dtype in ((64, torch.float32), (64, torch.bfloat16), (80, torch.float32)):
        x = torch.randn(2, width, device=device).to(dtype)
        triton_ops.rms_norm(x, torch.ones(width, device=device), 1e-6)
    assert len(set(seen)) == 3


def test_an_empty_grid_launches_nothing(triton_ops: Ops, device: torch.device, seen: list[Variant]) -> None:
    triton_ops.rms_norm(torch.empty(0, 64, device=device), torch.ones(64, device=device), 1e-6)
    assert seen == []
