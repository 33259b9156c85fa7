"""Linear layers: every row count up to several tiles, awkward widths, stacked and quantized weights."""

from __future__ import annotations

from collections.abc import Iterator

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from kernels import dispatch
from kernels.contracts import KernelError, Ops, QuantizedWeight
from kernels.cpu import build
from kernels.cpu import linear as linear_module
from kernels.cpu.library import lib
from kernels.cpu.linear import _pack_float
from kernels.gguf_formats import BLOCKS
from kernels.reference.dequantize import dequantize
from tests.kernels.conftest import TOLERANCES, assert_near

SHAPES = [(32, 64), (576, 1536), (123, 5), (5, 123), (781, 182)]
BLOCK_TYPES = sorted(BLOCKS)


def gguf_rows(kind: str, rows: int, width: int) -> QuantizedWeight:
    """Random codes with scales of ordinary size."""
    quant = getattr(gguf.GGMLQuantizationType, kind)
    elements, size = gguf.GGML_QUANT_SIZES[quant]
    raw = np.random.default_rng(3).integers(0, 256, (rows, width // elements, size), dtype=np.uint8)
    for position in BLOCKS[kind].halves_at:
        values = np.random.default_rng(4).uniform(1e-3, 2e-3, raw.shape[:2]).astype(np.float16)
        raw[..., position : position + 2] = values[..., None].view(np.uint8)
    return QuantizedWeight(torch.from_numpy(raw.reshape(rows, -1)), kind, width)


def relative_error(got: Tensor, expected: Tensor) -> float:
    return float((got.float() - expected.float()).norm() / expected.float().norm())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 6, 7, 12, 13, 64])
@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_linear(cpu: Ops, reference: Ops, shape: tuple[int, int], rows: int, dtype: torch.dtype) -> None:
    weight, bias = (torch.randn(shape) / shape[1] ** 0.5).to(dtype), torch.randn(shape[0]).to(dtype)
    x = torch.randn(rows, shape[1]).to(dtype)
    got = cpu.linear(x, cpu.pack_linear(weight, bias))
    assert_near(got, reference.linear(x, reference.pack_linear(weight, bias)))


def test_many_rows_walk_several_bands(cpu: Ops, reference: Ops) -> None:
    weight, x = torch.randn(96, 700) / 26, torch.randn(1823, 700)
    assert_near(cpu.linear(x, cpu.pack_linear(weight)), reference.linear(x, reference.pack_linear(weight)))


def test_no_rows_give_no_rows(cpu: Ops) -> None:
    assert cpu.linear(torch.zeros(0, 8), cpu.pack_linear(torch.zeros(3, 8))).shape == (0, 3)


def test_logits_can_leave_in_float32(cpu: Ops) -> None:
    weight, x = torch.randn(40, 64).bfloat16(), torch.randn(2, 64).bfloat16()
    got = cpu.linear(x, cpu.pack_linear(weight), out_dtype=torch.float32)
    assert got.dtype is torch.float32
    assert relative_error(got, x.float() @ weight.float().T) < 2e-3


def errors_beside_bfloat16(cpu: Ops, outlier: float, at: int, magnitude: float) -> tuple[float, float, float]:
    """(our error, that of rounding the activations to bfloat16, the bound of summing in float32), as norms.

    The last is k * 2^-24 * |x| |w|^T (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1): what any
    order of float32 additions may lose, also behind products that were rounded exactly as bfloat16 rounds.
    """
    weight, x = (torch.randn(96, 700) / 26 * magnitude).bfloat16(), torch.randn(20, 700)
    x[:, at] *= outlier
    exact = x.double() @ weight.double().T
    got = cpu.linear(x, cpu.pack_linear(weight, dtype=torch.bfloat16), out_dtype=torch.float32)
    rounded = x.bfloat16().double() @ weight.double().T
    summation = x.shape[1] * 2.0**-24 * (x.double().abs() @ weight.double().abs().T)
    return float((got - exact).norm()), float((rounded - exact).norm()), float(summation.norm())


@pytest.mark.parametrize("outlier", [1.0, 1000.0])
@pytest.mark.parametrize("magnitude", [1e-6, 1.0, 1e4])
def test_bfloat16_weights_lose_no_more_than_a_bfloat16_rounding(cpu: Ops, outlier: float, magnitude: float) -> None:
    """Whatever arithmetic this CPU runs them in, also with outliers and at extreme scales."""
    ours, rounding, summation = errors_beside_bfloat16(cpu, outlier, 300, magnitude)
    assert ours <= rounding + summation


@pytest.mark.parametrize("at", [0, 31, 32, 511, 512, 699])
def test_where_an_outlier_stands_costs_little_more_than_a_bfloat16_rounding(cpu: Ops, at: int) -> None:
    """What float16 sums lose behind an outlier depends on how many inputs follow it."""
    ours, rounding, summation = errors_beside_bfloat16(cpu, 1000.0, at, 1.0)
    assert ours <= 1.5 * rounding + summation


def test_stacked_weights_equal_their_concatenation(cpu: Ops) -> None:
    parts = [torch.randn(n, 64) for n in (48, 16, 17)]
    x = torch.randn(5, 64)
    assert torch.equal(cpu.linear(x, cpu.pack_linear(parts)), cpu.linear(x, cpu.pack_linear(torch.cat(parts))))


@pytest.mark.parametrize("shape", [(576, 1536), (123, 44), (5, 123)])
@pytest.mark.parametrize("rows", [1, 5, 17])
def test_int8_stays_within_one_percent(cpu: Ops, shape: tuple[int, int], rows: int) -> None:
    weight, x = torch.randn(shape) / shape[1] ** 0.5, torch.randn(rows, shape[1])
    got = cpu.linear(x, cpu.pack_linear(weight, quantization="int8"))
    assert relative_error(got, x @ weight.T) < 0.015


def test_int8_survives_an_outlier_activation(cpu: Ops) -> None:
    """One huge input costs precision in its own group of inputs, not in the whole row."""
    weight, x = torch.randn(64, 512) / 23, torch.randn(3, 512)
    x[:, 100] = 500.0
    weight[:, 100] = 0.0
    got = cpu.linear(x, cpu.pack_linear(weight, quantization="int8"))
    assert relative_error(got, x @ weight.T) < relative_error(_per_row_int8(x, weight), x @ weight.T) / 2


def _per_row_int8(x: Tensor, weight: Tensor) -> Tensor:
    step = x.abs().amax(dim=1, keepdim=True) / 127
    return ((x / step).round() * step) @ weight.T


def test_int4_equals_the_rounded_weight(cpu: Ops, reference: Ops) -> None:
    weight, x = torch.randn(70, 256) / 16, torch.randn(9, 256)
    got = cpu.linear(x, cpu.pack_linear(weight, quantization="int4"))
    expected = reference.linear(x, reference.pack_linear(weight, quantization="int4"))
    assert relative_error(got, expected) < 0.01


@pytest.mark.parametrize("kind", BLOCK_TYPES)
@pytest.mark.parametrize("rows", [1, 8, 30])
def test_gguf_codes_are_kept(cpu: Ops, kind: str, rows: int) -> None:
    weight = gguf_rows(kind, 70, 512)
    x = torch.randn(rows, 512)
    packed = cpu.pack_linear(weight, dtype=torch.float32, quantization="gguf")
    assert packed.nbytes < 70 * 512 * 2
    assert relative_error(cpu.linear(x, packed), x @ dequantize(weight).T) < 0.01


def test_gguf_types_can_be_stacked(cpu: Ops) -> None:
    weights = [gguf_rows("Q4_K", 40, 256), gguf_rows("Q6_K", 24, 256), gguf_rows("Q8_0", 9, 256)]
    x = torch.randn(4, 256)
    got = cpu.linear(x, cpu.pack_linear(weights, dtype=torch.float32, quantization="gguf"))
    assert relative_error(got, x @ torch.cat([dequantize(w) for w in weights]).T) < 0.01


def test_gguf_blocks_can_be_widened(cpu: Ops) -> None:
    weight, x = gguf_rows("Q4_1", 33, 64), torch.randn(2, 64)
    got = cpu.linear(x, cpu.pack_linear(weight, dtype=torch.float32))
    torch.testing.assert_close(got, x @ dequantize(weight).T, atol=1e-4, rtol=1e-4)


def test_plain_weights_have_no_gguf_codes(cpu: Ops) -> None:
    with pytest.raises(KernelError, match="plain tensor"):
        cpu.pack_linear(torch.zeros(4, 32), quantization="gguf")


def test_an_unknown_quantization_lists_the_known(cpu: Ops) -> None:
    with pytest.raises(KernelError, match="'fp3' is unknown; choose one of"):
        cpu.pack_linear(torch.zeros(4, 32), quantization="fp3")


def test_stacked_widths_must_agree(cpu: Ops) -> None:
    with pytest.raises(KernelError, match=r"one input width, found \[32, 64\]"):
        cpu.pack_linear([torch.zeros(4, 32), torch.zeros(4, 64)])


def test_a_block_format_of_the_wrong_length_is_refused(reference: Ops) -> None:
    weight = QuantizedWeight(torch.zeros(2, 19, dtype=torch.uint8), "Q4_1", 32)
    with pytest.raises(KernelError, match="need 20 bytes"):
        reference.pack_linear(weight)


def test_embedding_reads_plain_and_quantized_rows(reference: Ops) -> None:
    weight = gguf_rows("Q6_K", 20, 256)
    ids = torch.tensor([3, 3, 19, 0])
    expected = dequantize(weight)[ids]
    assert torch.equal(reference.embedding(ids, weight), expected)
    assert torch.equal(reference.embedding(ids, dequantize(weight), torch.bfloat16), expected.bfloat16())


def test_an_id_outside_the_table_is_refused(reference: Ops) -> None:
    with pytest.raises(KernelError, match="20 rows"):
        reference.embedding(torch.tensor([20]), torch.zeros(20, 4))


@pytest.fixture
def bf16_dots(cpu: Ops, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Dense bfloat16 weights through AVX512-BF16 dots, as on CPUs whose dots run at full rate."""
    if "avx512_bf16" not in build.cpu_flags():
        pytest.skip("this CPU has no AVX512-BF16")
    monkeypatch.setattr(linear_module, "_pack_half", lambda weights, struct: _pack_float(weights, struct, bf16=True))
    before = lib().esc_prefer_bf16_dot(1)
    yield
    lib().esc_prefer_bf16_dot(before)


@pytest.mark.usefixtures("bf16_dots")
@pytest.mark.parametrize("rows", [1, 2, 7, 12, 13, 64])
@pytest.mark.parametrize("shape", SHAPES)
def test_bfloat16_dots_agree(cpu: Ops, reference: Ops, shape: tuple[int, int], rows: int) -> None:
    weight, x = (torch.randn(shape) / shape[1] ** 0.5).bfloat16(), torch.randn(rows, shape[1]).bfloat16()
    got = cpu.linear(x, cpu.pack_linear(weight))
    assert_near(got, reference.linear(x, reference.pack_linear(weight)))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_out_receives_the_product(backend: dispatch.Backend) -> None:
    ops = dispatch.load(backend, device="cpu")
    weight, x = torch.randn(48, 64), torch.randn(5, 64)
    packed, out = ops.pack_linear(weight), torch.full((5, 48), 7.0)
    assert ops.linear(x, packed, out_dtype=torch.float32, out=out) is out
    assert torch.equal(out, ops.linear(x, packed, out_dtype=torch.float32))


def test_out_of_another_shape_or_dtype_is_refused(cpu: Ops) -> None:
    packed, x = cpu.pack_linear(torch.randn(48, 64)), torch.randn(5, 64)
    for wrong in (torch.empty(4, 48), torch.empty(48, 5).T, torch.empty(5, 48, dtype=torch.bfloat16)):
        with pytest.raises(KernelError, match="expected contiguous"):
            cpu.linear(x, packed, out_dtype=torch.float32, out=wrong)
