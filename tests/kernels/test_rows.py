"""Row-wise ops of the C++ back end against the reference, on awkward shapes and both dtypes."""

from __future__ import annotations

import pytest
import torch

from kernels.contracts import KernelError, Ops
from tests.kernels.conftest import TOLERANCES, assert_near

SHAPES = [(1, 16), (5, 123), (64, 576), (123, 5), (1823, 781)]
DTYPES = list(TOLERANCES)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm(cpu: Ops, reference: Ops, shape: tuple[int, int], dtype: torch.dtype, offset: float) -> None:
    x, weight = torch.randn(shape).to(dtype), torch.randn(shape[1]).to(dtype)
    assert_near(cpu.rms_norm(x, weight, 1e-6, offset), reference.rms_norm(x, weight, 1e-6, offset))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm_gives_norm_and_sum(cpu: Ops, reference: Ops, shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, residual, weight = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype), torch.randn(shape[1])
    expected, total = reference.add_rms_norm(x, residual, weight, 1e-5)
    got, got_total = cpu.add_rms_norm(x.clone(), residual.clone(), weight, 1e-5)
    assert torch.equal(got_total, total)
    assert_near(got, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_head_rms_norm(cpu: Ops, reference: Ops, dtype: torch.dtype) -> None:
    x, weight = torch.randn(7, 3, 40).to(dtype), torch.randn(40)
    assert_near(cpu.head_rms_norm(x, weight, 1e-6), reference.head_rms_norm(x, weight, 1e-6))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_bias", [True, False])
def test_layer_norm(cpu: Ops, reference: Ops, shape: tuple[int, int], dtype: torch.dtype, with_bias: bool) -> None:
    x, weight = torch.randn(shape).to(dtype), torch.randn(shape[1]).to(dtype)
    bias = torch.randn(shape[1]).to(dtype) if with_bias else None
    assert_near(cpu.layer_norm(x, weight, bias, 1e-5), reference.layer_norm(x, weight, bias, 1e-5))


@pytest.mark.parametrize("dim", [8, 40, 64, 96])
@pytest.mark.parametrize("rotary", [8, None])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rope_turns_queries_and_keys_in_place(
    cpu: Ops, reference: Ops, dim: int, rotary: int | None, dtype: torch.dtype
) -> None:
    angles = torch.rand(50, (rotary or dim) // 2) * 6
    positions = torch.randint(0, 50, (13,))
    q, k = torch.randn(13, 9, dim).to(dtype), torch.randn(13, 3, dim).to(dtype)
    expected_q, expected_k = q.clone(), k.clone()
    reference.rope(expected_q, expected_k, angles.cos(), angles.sin(), positions)
    cpu.rope(q, k, angles.cos(), angles.sin(), positions)
    assert_near(q, expected_q)
    assert_near(k, expected_k)


def test_rope_on_slices_of_a_fused_projection_changes_the_slices(cpu: Ops, reference: Ops) -> None:
    fused = torch.randn(4, 5 * 16)
    expected = fused.clone()
    angles = torch.rand(9, 8)
    positions = torch.tensor([0, 3, 8, 2])
    for ops, tensor in ((cpu, fused), (reference, expected)):
        q, k = tensor[:, :48].view(4, 3, 16), tensor[:, 48:64].view(4, 1, 16)
        ops.rope(q, k, angles.cos(), angles.sin(), positions)
    assert_near(fused, expected)


def test_rope_refuses_a_position_outside_its_tables(cpu: Ops) -> None:
    with pytest.raises(KernelError, match=r"span \[0, 5\], tables have 5"):
        cpu.rope(torch.zeros(2, 1, 4), torch.zeros(2, 1, 4), torch.ones(5, 2), torch.ones(5, 2), torch.tensor([0, 5]))


@pytest.mark.parametrize("name", ["silu_mul", "gelu_tanh_mul"])
@pytest.mark.parametrize("shape", [(1, 2), (5, 246), (64, 3072), (123, 1562)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gated_activations(cpu: Ops, reference: Ops, name: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = (torch.randn(shape) * 4).to(dtype)
    assert_near(getattr(cpu, name)(x), getattr(reference, name)(x))


@pytest.mark.parametrize("name", ["silu_mul", "gelu_tanh_mul"])
def test_gates_at_extreme_values_stay_finite(cpu: Ops, reference: Ops, name: str) -> None:
    gate = torch.tensor([[-1e4, -100.0, -20.0, 0.0, 20.0, 100.0, 1e4]])
    x = torch.cat((gate, torch.ones_like(gate)), dim=1)
    torch.testing.assert_close(getattr(cpu, name)(x), getattr(reference, name)(x), atol=1e-6, rtol=1e-5)


def test_float16_is_widened_and_narrowed_again(cpu: Ops, reference: Ops) -> None:
    x, weight = torch.randn(3, 20).half(), torch.randn(20).half()
    got = cpu.rms_norm(x, weight, 1e-5)
    assert got.dtype is torch.float16
    torch.testing.assert_close(got, reference.rms_norm(x, weight, 1e-5), atol=2e-3, rtol=2e-3)


def test_other_dtypes_are_refused_by_name(cpu: Ops) -> None:
    with pytest.raises(KernelError, match=r"bitmask must be torch\.int32, found torch\.int64"):
        cpu.apply_token_bitmask(torch.zeros(1, 4), torch.zeros(1, 1, dtype=torch.int64), torch.tensor([0]))
