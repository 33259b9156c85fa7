"""Codes of AWQ, GPTQ and compressed-tensors on the C++ kernels: packed, in their own groups, in any column order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.contracts import IntWeight, KernelError, Ops
from kernels.cpu.integer_weights import native_group
from kernels.reference.dequantize import dequantize
from tests.kernels.test_coded_weights import integers

RELATIVE = 2e-2
"""Activations are rounded to 8 bits per group."""


def error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.float() - expected.float()).norm() / expected.float().norm())


@pytest.mark.parametrize("rows", [1, 2, 5, 17])
@pytest.mark.parametrize("group", [8, 32, 64, 128, 256])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_products_are_near_those_of_the_dense_twin(cpu: Ops, rows: int, group: int, bits: int) -> None:
    weight, x = integers(70, 256, bits, group), torch.randn(rows, 256)
    y = cpu.linear(x, cpu.pack_linear(weight, dtype=torch.float32))
    assert error(y, x @ dequantize(weight).T) < RELATIVE


@pytest.mark.parametrize(("inputs", "group"), [(96, 64), (40, 32), (200, 128), (64, 1000)])
def test_the_last_group_may_be_shorter(cpu: Ops, inputs: int, group: int) -> None:
    weight, x = integers(33, inputs, 4, group), torch.randn(3, inputs)
    y = cpu.linear(x, cpu.pack_linear(weight, dtype=torch.float32))
    assert error(y, x @ dequantize(weight).T) < RELATIVE


def test_widths_that_no_instruction_eats_are_widened(cpu: Ops) -> None:
    weight, x = integers(33, 50, 4, 25), torch.randn(3, 50)
    assert native_group([weight]) == 0
    y = cpu.linear(x, cpu.pack_linear(weight, dtype=torch.float32))
    torch.testing.assert_close(y, x @ dequantize(weight).T, atol=1e-4, rtol=1e-4)


def test_columns_are_read_in_their_order(cpu: Ops) -> None:
    order, x = torch.randperm(128), torch.randn(5, 128)
    plain = integers(40, 128, 4, 64)
    weight = IntWeight(plain.codes, plain.scale, plain.zero, 4, 64, columns=order)
    y = cpu.linear(x, cpu.pack_linear(weight, dtype=torch.float32))
    assert error(y, x @ dequantize(weight).T) < RELATIVE
    assert torch.equal(y, cpu.linear(x[:, order].contiguous(), cpu.pack_linear(plain, dtype=torch.float32)))


def test_parts_are_stacked_with_their_own_scales(cpu: Ops) -> None:
    weights = [integers(40, 128, 4, 64), integers(24, 128, 8, 128, asymmetric=False), integers(3, 128, 3, 32)]
    bias, x = torch.randn(67), torch.randn(4, 128)
    packed = cpu.pack_linear(weights, bias, torch.float32)
    y = cpu.linear(x, packed)
    expected = torch.cat([x @ dequantize(weight).T for weight in weights], dim=1) + bias
    for part in (slice(0, 40), slice(40, 64), slice(64, 67)):
        assert error(y[:, part], expected[:, part]) < RELATIVE


def test_parts_with_other_orders_are_refused(cpu: Ops) -> None:
    plain = integers(32, 64)
    turned = IntWeight(plain.codes, plain.scale, plain.zero, 4, 16, torch.arange(63, -1, -1))
    with pytest.raises(KernelError, match="orders"):
        cpu.pack_linear([plain, turned], dtype=torch.float32)


@pytest.mark.parametrize("inputs", [32, 60, 128])
def test_bytes_with_one_scale_an_output_keep_it_in_float32(cpu: Ops, inputs: int) -> None:
    codes = torch.randint(0, 256, (40, inputs), dtype=torch.uint8)
    weight = IntWeight(codes, torch.rand(40, 1) * 1e-6, None, 8, inputs, activations="int8")
    x = torch.randint(-127, 128, (3, inputs)).float()
    x[:, ::32] = 127.0  # then every group of activations has the scale 1, and codes of activations are exact
    y = cpu.linear(x, cpu.pack_linear(weight, dtype=torch.float32))
    torch.testing.assert_close(y, x @ dequantize(weight).T, atol=2e-8, rtol=1e-5)


def test_codes_stay_packed(cpu: Ops) -> None:
    for bits, group, bytes_each in (
        (4, 128, 0.5 + 4 / 128),
        (4, 64, 0.5 + 4 / 64),
        (3, 128, 0.5 + 4 / 128),
        (8, 128, 1 + 4 / 128),
    ):
        packed = cpu.pack_linear(integers(512, 512, bits, group), dtype=torch.bfloat16)
        assert packed.nbytes == pytest.approx(512 * 512 * bytes_each)


def test_a_row_is_bitwise_the_same_alone_and_in_a_batch(cpu: Ops) -> None:
    weight, x = integers(70, 256, 4, 128), torch.randn(19, 256)
    packed = cpu.pack_linear(weight, dtype=torch.float32)
    whole = cpu.linear(x, packed)
    for row in range(19):
        assert torch.equal(cpu.linear(x[row : row + 1], packed)[0], whole[row])
