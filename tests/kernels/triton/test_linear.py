"""Products of every kind of weight beside the reference: odd sizes, groups, column orders, tiles of scales, splits."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from kernels import dispatch
from kernels.contracts import FloatWeight, KernelError, Ops, PackedLinear, Weight
from kernels.reference.dequantize import dequantize
from kernels.triton.launch import OBSERVERS, Variant
from tests.kernels.conftest import assert_near
from tests.kernels.test_coded_weights import integers
from tests.kernels.test_linear import gguf_rows

F8 = torch.float8_e4m3fn


def on(device: torch.device, weight: Weight) -> Weight:
    """The weight with its tensors on the device."""
    if isinstance(weight, Tensor):
        return weight.to(device)
    named = ((field.name, getattr(weight, field.name)) for field in fields(weight))
    moved: Any = {name: value.to(device) for name, value in named if isinstance(value, Tensor)}
    return replace(weight, **moved)


def floats(outputs: int, inputs: int, block: tuple[int, int] | None = None, rounded: bool = False) -> FloatWeight:
    shape = (outputs, 1) if block is None else (-(-outputs // block[0]), -(-inputs // block[1]))
    codes = (torch.randn(outputs, inputs) * 20).to(F8)
    return FloatWeight(codes, torch.rand(shape) * 0.01 + 0.001, block, "fp8" if rounded else None)


def check(
    ops: Ops,
    reference: Ops,
    device: torch.device,
    weights: Weight | list[Weight],
    rows: int = 3,
    dtype: torch.dtype = torch.float32,
    quantization: str | None = None,
    bias: bool = False,
) -> PackedLinear:
    """The product of some rows is that of the reference; the packed weight."""
    parts = weights if isinstance(weights, list) else [weights]
    plain = reference.pack_linear(parts, None, dtype, quantization)
    extra = torch.randn(plain.out_features).to(device) if bias else None
    x = torch.randn(rows, plain.in_features).to(dtype).to(device)
    packed = ops.pack_linear([on(device, part) for part in parts], extra, dtype, quantization)
    plain = reference.pack_linear([on(device, part) for part in parts], extra, dtype, quantization)
    y = ops.linear(x, packed)
    assert y.dtype is dtype
    expected = reference.linear(x.float(), plain)
    # Relative to the largest: sums of many numbers, and weights that are rounded to the dtype of x once more.
    scale = max(1.0, float(expected.abs().max())) if rows else 1.0
    assert_near(y / scale, (expected / scale).to(dtype))
    return packed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dense_products(triton_ops: Ops, reference: Ops, device: torch.device, dtype: torch.dtype) -> None:
    if dtype is torch.float16:
        weight, x = torch.randn(70, 130, device=device).half(), torch.randn(3, 130, device=device).half()
        y = triton_ops.linear(x, triton_ops.pack_linear(weight, dtype=dtype))
        torch.testing.assert_close(y.float(), x.float() @ weight.float().T, atol=2e-2, rtol=2e-3)
        return
    check(triton_ops, reference, device, [torch.randn(70, 130), torch.randn(5, 130)], dtype=dtype, bias=True)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("group", [16, 32, 64, 128, 130])
def test_integer_codes(triton_ops: Ops, reference: Ops, device: torch.device, bits: int, group: int) -> None:
    """129 outputs and 130 inputs: no tile fits them."""
    weight = integers(129, 130, bits, group, asymmetric=True)
    packed = check(triton_ops, reference, device, weight, bias=True)
    assert packed.data.form == ("codes8" if bits == 8 else "codes4")


@pytest.mark.parametrize("rows", [0, 1, 5, 16, 17, 65])
def test_integer_codes_times_any_number_of_rows(
    triton_ops: Ops, reference: Ops, device: torch.device, rows: int
) -> None:
    check(triton_ops, reference, device, integers(40, 96, 4, 32), rows, torch.bfloat16)


def test_many_rows_take_the_widened_weight(triton_ops: Ops, reference: Ops, device: torch.device) -> None:
    order = torch.randperm(96)
    for weight in (replace(integers(40, 96, 4, 32), columns=order), floats(40, 96), integers(40, 96, 8, 96)):
        check(triton_ops, reference, device, weight, rows=257)
        check(triton_ops, reference, device, weight, rows=257, dtype=torch.bfloat16)


@pytest.mark.parametrize(("most", "widens"), [(2**28, True), (40 * 96 - 1, False)])
def test_a_weight_too_large_to_widen_stays_packed(
    triton_ops: Ops, device: torch.device, monkeypatch: pytest.MonkeyPatch, most: int, widens: bool
) -> None:
    monkeypatch.setattr("kernels.triton.linear.MOST_WIDENED", most)
    packed = triton_ops.pack_linear(on(device, integers(40, 96, 4, 32)), dtype=torch.float32)
    seen: list[Variant] = []
    OBSERVERS.add(seen.append)
    try:
        triton_ops.linear(torch.randn(256, 96, device=device), packed)
    finally:
        OBSERVERS.remove(seen.append)
    assert [one.kernel for one in seen] == (["product.widen"] if widens else ["product.multiply"])


def test_zero_points_at_both_ends(triton_ops: Ops, reference: Ops, device: torch.device) -> None:
    weight = integers(8, 64, 4, 32)
    zero = torch.tensor([[0.0, 15.0]]).repeat(8, 1)
    check(triton_ops, reference, device, replace(weight, zero=zero))


def test_symmetric_codes_hold_no_zero_points(triton_ops: Ops, reference: Ops, device: torch.device) -> None:
    packed = check(triton_ops, reference, device, integers(24, 64, 4, 32, asymmetric=False))
    assert packed.data.offset is None
    # 2-bit codes lie in 4-bit words, whose middle is another.
    packed = check(triton_ops, reference, device, integers(24, 64, 2, 32, asymmetric=False))
    assert packed.data.offset is not None


def test_scales_of_half_precision_stay_so(triton_ops: Ops, reference: Ops, device: torch.device) -> None:
    weight = integers(24, 64)
    packed = check(triton_ops, reference, device, replace(weight, scale=weight.scale.half().float()))
    assert packed.data.scale.dtype is torch.float16
    assert check(triton_ops, reference, device, weight).data.scale.dtype is torch.float32


def test_parts_of_other_groups_and_bits_are_stacked(triton_ops: Ops, reference: Ops, device: torch.device) -> None:
    parts: list[Weight] = [integers(20, 128, 4, 64), integers(9, 128, 8, 32), integers(7, 128, 3, 128)]
    packed = check(triton_ops, reference, device, parts, bias=True)
    assert (packed.data.form, packed.data.group) == ("codes8", 32)


def test_columns_of_act_order_files(triton_ops: Ops, reference: Ops, device: torch.device) -> None:
    order = torch.randperm(96)
    parts: list[Weight] = [replace(integers(20, 96, 4, 32), columns=order) for _ in range(2)]
    check(triton_ops, reference, device, parts)
    parts[1] = replace(integers(20, 96, 4, 32), columns=order.flip(0))
    with pytest.raises(KernelError, match="orders of their columns"):
        triton_ops.pack_linear(parts)


def test_groups_that_no_shift_fits_are_widened(triton_ops: Ops, reference: Ops, device: torch.device) -> None:
    assert check(triton_ops, reference, device, integers(20, 96, 4, 24)).data.form == "dense"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_products_are_exact(triton_ops: Ops, reference: Ops, device: torch.device, dtype: torch.dtype) -> None:
    """Integer sums have one result: bitwise that of the reference's, up to the two scales."""
    weight = torch.randn(33, 200, device=device)
    x = torch.randn(5, 200, device=device).to(dtype)
    y = triton_ops.linear(x, triton_ops.pack_linear(weight, quantization="int8"), torch.float32)
    expected = reference.linear(x, reference.pack_linear(weight, quantization="int8"), torch.float32)
    torch.testing.assert_close(y, expected, atol=0, rtol=3e-7)


@pytest.mark.parametrize(("input_scale", "input_zero"), [(None, 0.0), (0.02, 0.0), (0.02, 17.0), (0.001, -100.0)])
def test_int8_codes_of_files(
    triton_ops: Ops, reference: Ops, device: torch.device, input_scale: float | None, input_zero: float
) -> None:
    """Activations found as they come, given, and given with a zero point; the last clamps most of them."""
    weight = replace(
        integers(33, 80, 8, 80, asymmetric=False), activations="int8", input_scale=input_scale, input_zero=input_zero
    )
    assert check(triton_ops, reference, device, weight, bias=True).data.form == "int8"


@pytest.mark.parametrize("block", [None, (128, 128)])
@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_float8_codes(
    triton_ops: Ops,
    reference: Ops,
    device: torch.device,
    block: tuple[int, int] | None,
    rounded: bool,
    dtype: torch.dtype,
) -> None:
    """Weights alone, and activations too; 129 outputs and 270 inputs reach one row and 14 columns into other tiles."""
    weight = floats(129, 270, block, rounded)
    packed = check(triton_ops, reference, device, weight, dtype=dtype, bias=True)
    assert packed.data.form == ("fp8" if rounded else "float8")


def test_static_float8_activations(triton_ops: Ops, reference: Ops, device: torch.device) -> None:
    for block in (None, (128, 128)):
        check(triton_ops, reference, device, replace(floats(20, 256, block, rounded=True), input_scale=0.01))


def test_every_float8_number_is_decoded_exactly(triton_ops: Ops, device: torch.device) -> None:
    """All 254 finite codes, the denormal ones too."""
    bytes_ = torch.arange(256, dtype=torch.uint8)
    codes = bytes_[(bytes_ & 0x7F) != 0x7F].view(F8)
    weight = FloatWeight(codes.view(-1, 1).to(device), torch.ones(254, 1, device=device))
    packed = triton_ops.pack_linear(weight, dtype=torch.float32)
    assert packed.data.form == "float8"
    y = triton_ops.linear(torch.ones(1, 1, device=device), packed)
    assert torch.equal(y[0].cpu(), codes.float())


def test_tiles_that_no_chunk_fits_are_widened(triton_ops: Ops, reference: Ops, device: torch.device) -> None:
    assert check(triton_ops, reference, device, floats(20, 96, (32, 48))).data.form == "dense"


@pytest.mark.parametrize(
    "name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL"]
)
def test_gguf_blocks(triton_ops: Ops, reference: Ops, device: torch.device, name: str) -> None:
    weights: list[Weight] = [gguf_rows(name, 24, 256), gguf_rows("Q8_0", 3, 256)]
    packed = check(triton_ops, reference, device, weights, quantization="gguf", dtype=torch.bfloat16)
    assert packed.data.form == "codes8"
    check(triton_ops, reference, device, weights[0], quantization="gguf")


def test_int4_of_dense_weights(triton_ops: Ops, reference: Ops, device: torch.device) -> None:
    assert check(triton_ops, reference, device, torch.randn(20, 64), quantization="int4").data.form == "codes4"


def test_a_split_product_is_the_whole_one(triton_ops: Ops, reference: Ops, device: torch.device) -> None:
    """Few outputs and many inputs: eight programs share a row, and their parts are added in order."""
    weight, x = integers(10, 8192, 4, 128), torch.randn(2, 8192, device=device)
    packed = triton_ops.pack_linear(on(device, weight), torch.ones(10, device=device), torch.float32)
    expected = x @ dequantize(on(device, weight)).T + 1.0  # type: ignore[arg-type]
    y = triton_ops.linear(x, packed)
    torch.testing.assert_close(y, expected, atol=1e-3, rtol=1e-4)
    assert torch.equal(triton_ops.linear(x, packed), y)


def test_results_of_another_dtype_and_place(triton_ops: Ops, reference: Ops, device: torch.device) -> None:
    for weight in (torch.randn(20, 64), integers(20, 64, 4, 32), floats(20, 64)):
        packed = triton_ops.pack_linear(on(device, weight), None, torch.bfloat16)
        x = torch.randn(4, 64, device=device).bfloat16()
        wide = triton_ops.linear(x, packed, torch.float32)
        assert wide.dtype is torch.float32
        assert torch.equal(wide.bfloat16(), triton_ops.linear(x, packed)) or not isinstance(weight, Tensor)
        out = torch.empty(4, 20, device=device)
        assert triton_ops.linear(x, packed, torch.float32, out) is out
        assert torch.equal(out, wide)


@pytest.mark.parametrize("kind", ["dense", "codes", "int8", "float8"])
def test_under_determinism_a_row_is_the_same_in_any_company(device: torch.device, kind: str) -> None:
    ops = dispatch.load("triton", device=device, deterministic=True)
    weights: dict[str, Weight] = {"codes": integers(20, 256, 4, 32), "float8": floats(20, 256, (128, 128), True)}
    weight = weights.get(kind, torch.randn(20, 256))
    packed = ops.pack_linear(on(device, weight), dtype=torch.float32, quantization="int8" if kind == "int8" else None)
    x = torch.randn(70, 256, device=device)
    together = ops.linear(x, packed)
    x[3:] = float("nan")
    assert torch.equal(ops.linear(x[:1], packed), together[:1])
    assert torch.equal(ops.linear(x[1:18], packed)[:2], together[1:3])


@pytest.mark.parametrize("to", ["int8", "fp8"])
def test_rows_are_rounded_as_the_reference_rounds_them(
    triton_ops: Ops, reference: Ops, device: torch.device, to: str
) -> None:
    x = torch.randn(6, 256, device=device) * torch.tensor([[1.0], [1e-4], [300.0], [0.0], [1e4], [1.0]], device=device)
    x[5, :6] = torch.tensor([448.0, 449.0, 464.0, 1e4, -1e9, 2.0**-9])
    for group, scale in ((None, None), (128, None), (32, None), (None, 1.0), (64, 0.37)):
        codes, scales = triton_ops.quantize_rows(x, to, group, scale)
        expected, expected_scales = reference.quantize_rows(x, to, group, scale)
        assert torch.equal(scales, expected_scales)
        assert torch.equal(codes.float(), expected.float())


def test_rows_of_a_wider_tensor_are_rounded_alone(triton_ops: Ops, reference: Ops, device: torch.device) -> None:
    wide = torch.randn(3, 96, device=device)
    codes, _ = triton_ops.quantize_rows(wide[:, 32:64], "int8")
    assert torch.equal(codes, reference.quantize_rows(wide[:, 32:64].contiguous(), "int8")[0])
    with pytest.raises(KernelError, match="do not divide"):
        triton_ops.quantize_rows(wide, "int8", 36)
