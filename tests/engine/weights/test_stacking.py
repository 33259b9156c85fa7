"""Parts of one product are brought into one form, and none of their numbers change."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from engine.weights.stacking import stackable
from kernels.contracts import FloatWeight, IntWeight, Ops, Weight
from kernels.dispatch import load
from kernels.reference.dequantize import dequantize


def integers(bits: int = 4, group: int = 32, columns: Tensor | None = None, zero: bool = True) -> IntWeight:
    groups = 64 // group
    codes = torch.randint(0, 2**bits, (8, 64), dtype=torch.uint8)
    points = torch.randint(0, 2**bits, (8, groups)).float() if zero else None
    return IntWeight(codes, torch.rand(8, groups) + 0.1, points, bits, group, columns)


def floats(outputs: int, block: tuple[int, int] | None = None) -> FloatWeight:
    scale = torch.rand(outputs, 1) if block is None else torch.rand(-(-outputs // block[0]), -(-64 // block[1]))
    return FloatWeight(torch.randn(outputs, 64).to(torch.float8_e4m3fn), scale, block, "fp8")


def dense(weights: Sequence[Weight]) -> Tensor:
    return torch.cat([weight if isinstance(weight, Tensor) else dequantize(weight) for weight in weights])


@pytest.fixture(scope="module")
def ops() -> Ops:
    return load("reference", device="cpu")


ORDER = torch.randperm(64, generator=torch.Generator().manual_seed(1))
KEPT: dict[str, list[Weight]] = {
    "equal": [integers(), integers()],
    "other widths": [integers(4), integers(8), integers(3, zero=False)],
    "other groups": [integers(group=64), integers(group=16), integers(group=32)],
    "equal orders": [integers(columns=ORDER), integers(columns=ORDER)],
    "floats": [floats(8), floats(4)],
    "whole tiles": [floats(8, (4, 32)), floats(6, (4, 32))],
}
WIDENED: dict[str, list[Weight]] = {
    "another order": [integers(columns=ORDER), integers(columns=ORDER.flip(0))],
    "an order beside none": [integers(), integers(columns=ORDER)],
    "a plain part": [integers(), torch.randn(3, 64)],
    "integers beside floats": [integers(), floats(8)],
    "a tile that ends within a part": [floats(6, (4, 32)), floats(8, (4, 32))],
    "other tiles": [floats(8, (4, 32)), floats(8, (8, 32))],
}


@pytest.mark.parametrize("name", KEPT)
def test_parts_that_share_a_form_keep_their_codes(ops: Ops, name: str) -> None:
    weights = KEPT[name]
    parts = stackable(weights, torch.float32)
    assert torch.equal(dense(parts), dense(weights))
    assert not any(isinstance(part, Tensor) for part in parts)
    ops.pack_linear(parts, dtype=torch.float32)


@pytest.mark.parametrize("name", WIDENED)
def test_parts_that_share_none_are_widened(ops: Ops, name: str) -> None:
    weights = WIDENED[name]
    parts = stackable(weights, torch.float32)
    assert all(isinstance(part, Tensor) for part in parts)
    assert torch.equal(dense(parts), dense(weights))
    x = torch.randn(2, 64)
    torch.testing.assert_close(ops.linear(x, ops.pack_linear(parts, dtype=torch.float32)), x @ dense(weights).T)


def test_one_part_and_plain_parts_stay_as_they_are() -> None:
    alone, plain = integers(columns=ORDER), [torch.randn(2, 4), torch.randn(3, 4)]
    assert stackable([alone], torch.float32) == [alone]
    assert all(a is b for a, b in zip(stackable(plain, torch.bfloat16), plain, strict=True))
