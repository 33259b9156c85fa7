"""FP8 codes on the C++ kernels: every code, every shape of scales, one byte a weight."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.contracts import FloatWeight, Ops
from kernels.reference.dequantize import dequantize


def floats(outputs: int, inputs: int, block: tuple[int, int] | None = None) -> FloatWeight:
    shape = (outputs, 1) if block is None else (-(-outputs // block[0]), -(-inputs // block[1]))
    codes = (torch.randn(outputs, inputs) * 100).clamp(-448, 448).to(torch.float8_e4m3fn)
    return FloatWeight(codes, torch.rand(shape) * 1e-3 + 1e-5, block, activations="fp8")


def near(actual: Tensor, x: Tensor, weight: Tensor) -> None:
    torch.testing.assert_close(actual, x @ weight.T, atol=1e-5 * float(x.abs().max()), rtol=1e-5)


def test_every_code_is_decoded(cpu: Ops) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0  # NaN, which no reader lets through
    wide = codes.view(torch.float8_e4m3fn).float()
    weight = FloatWeight(codes.view(256, 1).repeat(1, 4).view(torch.float8_e4m3fn), torch.ones(256, 1))
    y = cpu.linear(torch.tensor([[1.0, 0.0, 0.0, 0.0]]), cpu.pack_linear(weight, dtype=torch.float32))
    assert torch.equal(y[0], wide)


@pytest.mark.parametrize("rows", [1, 3, 7, 18])
@pytest.mark.parametrize(("outputs", "inputs"), [(70, 128), (33, 50), (64, 256), (1, 3)])
def test_products_are_those_of_the_dense_twin(cpu: Ops, rows: int, outputs: int, inputs: int) -> None:
    weight, x, bias = floats(outputs, inputs), torch.randn(rows, inputs), torch.randn(outputs)
    y = cpu.linear(x, cpu.pack_linear(weight, bias, torch.float32))
    near(y - bias, x, dequantize(weight))


@pytest.mark.parametrize("block", [(128, 128), (16, 32), (1, 8), (200, 64)])
@pytest.mark.parametrize(("outputs", "inputs"), [(129, 130), (256, 384)])
def test_tiles_have_their_own_scales(cpu: Ops, outputs: int, inputs: int, block: tuple[int, int]) -> None:
    weight, x = floats(outputs, inputs, block), torch.randn(3, inputs)
    near(cpu.linear(x, cpu.pack_linear(weight, dtype=torch.float32)), x, dequantize(weight))


def test_parts_are_stacked(cpu: Ops) -> None:
    weights, x = [floats(40, 64), floats(3, 64), floats(77, 64)], torch.randn(4, 64)
    y = cpu.linear(x, cpu.pack_linear(weights, dtype=torch.float32))
    near(y, x, torch.cat([dequantize(weight) for weight in weights]))


def test_tiles_that_no_lane_holds_are_widened(cpu: Ops) -> None:
    weight, x = floats(32, 30, (8, 15)), torch.randn(2, 30)
    near(cpu.linear(x, cpu.pack_linear(weight, dtype=torch.float32)), x, dequantize(weight))


@pytest.mark.parametrize("size", [1e-20, 1.0, 1e15])
def test_small_and_large_numbers_keep_their_digits(cpu: Ops, size: float) -> None:
    weight, x = floats(32, 64), torch.randn(2, 64) * size
    y = cpu.linear(x, cpu.pack_linear(weight, dtype=torch.float32))
    near(y, x, dequantize(weight))


def test_codes_take_a_byte(cpu: Ops) -> None:
    assert cpu.pack_linear(floats(256, 256), dtype=torch.bfloat16).nbytes == 256 * 256 + 4 * 256


def test_a_row_is_bitwise_the_same_alone_and_in_a_batch(cpu: Ops) -> None:
    x = torch.randn(19, 256)
    for block in (None, (128, 128)):
        packed = cpu.pack_linear(floats(70, 256, block), dtype=torch.float32)
        whole = cpu.linear(x, packed)
        for row in range(19):
            assert torch.equal(cpu.linear(x[row : row + 1], packed)[0], whole[row])
