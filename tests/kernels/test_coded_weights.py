"""Weights that come quantized: what their codes mean, and products with them in the reference."""

from __future__ import annotations

import pytest
import torch

from kernels.contracts import FloatWeight, IntWeight, KernelError, Ops
from kernels.reference.dequantize import dequantize, rows_of
from tests.kernels.conftest import assert_near


def integers(outputs: int, inputs: int, bits: int = 4, group: int = 16, asymmetric: bool = True) -> IntWeight:
    shape = (outputs, -(-inputs // group))
    codes = torch.randint(0, 2**bits, (outputs, inputs), dtype=torch.uint8)
    zero = torch.randint(0, 2**bits, shape).float() if asymmetric else None
    return IntWeight(codes, torch.rand(shape) * 0.1 + 0.01, zero, bits, group)


def test_a_code_is_scaled_after_its_groups_zero_point() -> None:
    weight = IntWeight(
        codes=torch.tensor([[3, 5, 0, 15]], dtype=torch.uint8),
        scale=torch.tensor([[2.0, 0.5]]),
        zero=torch.tensor([[1.0, 8.0]]),
        bits=4,
        group=2,
    )
    assert dequantize(weight).tolist() == [[4.0, 8.0, -4.0, 3.5]]


def test_symmetric_codes_have_their_zero_in_the_middle() -> None:
    for bits, middle in ((2, 2), (3, 4), (4, 8), (8, 128)):
        weight = IntWeight(torch.tensor([[middle]], dtype=torch.uint8), torch.ones(1, 1), None, bits, 1)
        assert dequantize(weight).item() == 0.0


def test_sorted_columns_come_back_in_the_order_of_the_input() -> None:
    weight = IntWeight(
        codes=torch.tensor([[1, 2, 3]], dtype=torch.uint8),
        scale=torch.ones(1, 3),
        zero=torch.zeros(1, 3),
        bits=4,
        group=1,
        columns=torch.tensor([2, 0, 1]),
    )
    assert dequantize(weight).tolist() == [[2.0, 3.0, 1.0]]


def test_the_last_group_may_be_shorter() -> None:
    weight = integers(3, 20, group=16)
    assert dequantize(weight)[0, 17] == (weight.codes[0, 17].float() - weight.zero[0, 1]) * weight.scale[0, 1]  # type: ignore[index]


def test_float8_tiles_share_a_scale_up_to_the_edge() -> None:
    codes = torch.ones(3, 5).to(torch.float8_e4m3fn)
    weight = FloatWeight(codes, torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), block=(2, 2))
    assert dequantize(weight).tolist() == [[1, 1, 2, 2, 3], [1, 1, 2, 2, 3], [4, 4, 5, 5, 6]]


def test_scales_of_another_shape_are_refused() -> None:
    with pytest.raises(KernelError, match="scales"):
        dequantize(IntWeight(torch.zeros(2, 4, dtype=torch.uint8), torch.ones(2, 3), None, 4, 2))
    with pytest.raises(KernelError, match="scales"):
        dequantize(FloatWeight(torch.zeros(2, 4).to(torch.float8_e4m3fn), torch.ones(1, 1)))


def test_rows_of_a_weight_are_those_of_its_dense_twin() -> None:
    weight, chosen = integers(6, 32), torch.tensor([4, 1])
    assert torch.equal(dequantize(rows_of(weight, chosen)), dequantize(weight)[chosen])
    floats = FloatWeight(torch.randn(6, 8).to(torch.float8_e4m3fn), torch.rand(6, 1))
    assert torch.equal(dequantize(rows_of(floats, chosen)), dequantize(floats)[chosen])


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_a_product_is_that_of_the_dense_twin(reference: Ops, bits: int) -> None:
    weights, bias = [integers(5, 32, bits), integers(3, 32, bits, asymmetric=False)], torch.randn(8)
    x = torch.randn(4, 32)
    packed = reference.pack_linear(weights, bias, torch.float32)
    dense = torch.cat([dequantize(weight) for weight in weights])
    assert_near(reference.linear(x, packed), x @ dense.T + bias)
    assert (packed.out_features, packed.in_features) == (8, 32)


def test_activations_are_rounded_where_the_format_rounds_them(reference: Ops) -> None:
    x = torch.tensor([[1.0, 0.003, -1.27]])
    weight = IntWeight(torch.full((1, 3), 129, dtype=torch.uint8), torch.ones(1, 1), None, 8, 3, activations="int8")
    y = reference.linear(x, reference.pack_linear(weight, dtype=torch.float32))
    assert_near(y, torch.tensor([[1.0 + 0.0 - 1.27]]))


def test_static_asymmetric_activations_have_a_zero_point(reference: Ops) -> None:
    weight = IntWeight(
        torch.full((1, 2), 129, dtype=torch.uint8), torch.ones(1, 1), None, 8, 2, None, "int8", 0.5, input_zero=100.0
    )
    x = torch.tensor([[20.0, -1.2]])  # codes 127 (clamped from 140) and 98 (from 97.6): 13.5 and -1.0
    assert_near(reference.linear(x, reference.pack_linear(weight, dtype=torch.float32)), torch.tensor([[12.5]]))


def test_float8_activations_are_rounded_per_tile(reference: Ops) -> None:
    x = torch.tensor([[448.0, 3.3, 0.001, 0.0011, 7.0]])
    weight = FloatWeight(torch.ones(1, 5).to(torch.float8_e4m3fn), torch.ones(1, 3), block=(1, 2), activations="fp8")
    tiles = [reference.quantize_rows(part, "fp8") for part in torch.split(x, 2, dim=1)]
    expected = sum((codes.float() * scale).sum() for codes, scale in tiles)
    y = reference.linear(x, reference.pack_linear(weight, dtype=torch.float32))
    assert_near(y, torch.as_tensor(expected).view(1, 1))
    assert y.item() != x.sum().item()


def test_values_beyond_float8_are_clamped_and_never_nan(reference: Ops) -> None:
    codes, _ = reference.quantize_rows(torch.tensor([[448.0, 449.0, 464.0, 1e4, -1e9, 0.0]]), "fp8", scale=1.0)
    assert codes.float().tolist() == [[448.0, 448.0, 448.0, 448.0, -448.0, 0.0]]


def test_a_row_of_zeros_has_codes_of_zero(reference: Ops) -> None:
    for to in ("int8", "fp8"):
        codes, scales = reference.quantize_rows(torch.zeros(2, 4), to)
        assert codes.float().abs().max() == 0
        assert scales.isfinite().all()


def test_groups_that_do_not_divide_the_row_are_refused(reference: Ops) -> None:
    with pytest.raises(KernelError, match="groups of 3"):
        reference.quantize_rows(torch.zeros(1, 4), "int8", group=3)


def test_a_quantized_weight_is_not_quantized_again(reference: Ops) -> None:
    with pytest.raises(KernelError, match="already"):
        reference.pack_linear(integers(2, 32), dtype=torch.float32, quantization="int8")


def test_kinds_are_not_stacked_together(reference: Ops) -> None:
    with pytest.raises(KernelError, match="kinds"):
        reference.pack_linear([integers(2, 32), torch.zeros(2, 32)], dtype=torch.float32)


def test_embeddings_take_rows_of_coded_tables(reference: Ops) -> None:
    ids = torch.tensor([3, 0, 3])
    blocks = FloatWeight(torch.randn(4, 6).to(torch.float8_e4m3fn), torch.rand(2, 3), block=(2, 2))
    for table in (integers(4, 32), blocks):
        assert torch.equal(reference.embedding(ids, table), dequantize(table)[ids])
