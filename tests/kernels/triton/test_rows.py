"""Kernels that work row by row, beside the reference: odd widths, strides, rows of their own, half the dtypes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.contracts import KernelError, Ops
from tests.kernels.conftest import assert_near

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
WIDTHS = [1, 48, 80, 129, 576, 1024]


def rows(device: torch.device, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device=device).to(dtype)


def near(actual: Tensor, expected: Tensor) -> None:
    if expected.dtype is torch.float16:
        torch.testing.assert_close(actual, expected, atol=2e-3, rtol=2e-3)
    else:
        assert_near(actual, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_norms_of_rows(triton_ops: Ops, reference: Ops, device: torch.device, width: int, dtype: torch.dtype) -> None:
    x, residual, weight = rows(device, 3, width, dtype=dtype), rows(device, 3, width, dtype=dtype), rows(device, width)
    near(triton_ops.rms_norm(x, weight, 1e-6), reference.rms_norm(x, weight, 1e-6))
    near(triton_ops.rms_norm(x, weight, 1e-5, 1.0), reference.rms_norm(x, weight, 1e-5, 1.0))
    near(triton_ops.layer_norm(x, weight, weight, 1e-5), reference.layer_norm(x, weight, weight, 1e-5))
    near(triton_ops.layer_norm(x, weight, None, 1e-5), reference.layer_norm(x, weight, None, 1e-5))
    expected = reference.add_rms_norm(x.clone(), residual.clone(), weight, 1e-6)
    for actual, wanted in zip(triton_ops.add_rms_norm(x, residual, weight, 1e-6), expected, strict=True):
        near(actual, wanted)


def test_the_sum_with_the_residual_is_rounded_before_the_norm(triton_ops: Ops, device: torch.device) -> None:
    x = torch.full((1, 16), 1.0, device=device).bfloat16()
    residual = torch.full((1, 16), 2.0**-9, device=device).bfloat16()
    _, total = triton_ops.add_rms_norm(x, residual, torch.ones(16, device=device), 1e-6)
    assert torch.equal(total, x)


@pytest.mark.parametrize("dim", [16, 64, 80, 96])
def test_norms_of_heads(triton_ops: Ops, reference: Ops, device: torch.device, dim: int) -> None:
    x, weight = rows(device, 3, 5, dim), rows(device, dim)
    near(triton_ops.head_rms_norm(x, weight, 1e-6, 1.0), reference.head_rms_norm(x, weight, 1e-6, 1.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 48, 129, 1500])
def test_gates(triton_ops: Ops, reference: Ops, device: torch.device, width: int, dtype: torch.dtype) -> None:
    x = rows(device, 3, 2 * width, dtype=dtype) * 4
    near(triton_ops.silu_mul(x), reference.silu_mul(x))
    near(triton_ops.gelu_tanh_mul(x), reference.gelu_tanh_mul(x))


def test_gates_do_not_overflow(triton_ops: Ops, reference: Ops, device: torch.device) -> None:
    x = torch.tensor([[-1e4, -90.0, 90.0, 1e4, 1.0, 1.0, 1.0, 1.0]], device=device)
    near(triton_ops.silu_mul(x), reference.silu_mul(x))
    near(triton_ops.gelu_tanh_mul(x), reference.gelu_tanh_mul(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "half"), [(6, 2, 64, 32), (9, 3, 80, 40), (1, 1, 64, 16), (7, 1, 16, 8)]
)
def test_rotary_positions(
    triton_ops: Ops,
    reference: Ops,
    device: torch.device,
    heads: int,
    kv_heads: int,
    dim: int,
    half: int,
    dtype: torch.dtype,
) -> None:
    q, k = rows(device, 4, heads, dim, dtype=dtype), rows(device, 4, kv_heads, dim, dtype=dtype)
    cos, sin = rows(device, 50, half), rows(device, 50, half)
    positions = torch.tensor([0, 49, 7, 7], device=device)
    expected = q.clone(), k.clone()
    reference.rope(*expected, cos, sin, positions)
    triton_ops.rope(q, k, cos, sin, positions)
    near(q, expected[0])
    near(k, expected[1])


@pytest.mark.parametrize("width", [1, 48, 1500])
def test_rows_of_tables(triton_ops: Ops, reference: Ops, device: torch.device, width: int) -> None:
    table, ids = rows(device, 20, width, dtype=torch.bfloat16), torch.tensor([19, 0, 7, 7], device=device)
    assert torch.equal(triton_ops.embedding(ids, table), table[ids])
    assert torch.equal(triton_ops.embedding(ids, table, torch.float32), table[ids].float())


def test_rows_may_lie_apart(triton_ops: Ops, reference: Ops, device: torch.device) -> None:
    """A slice of a wider tensor has a stride that is not its width."""
    wide, weight = rows(device, 4, 96), rows(device, 32)
    x = wide[:, 32:64]
    near(triton_ops.rms_norm(x, weight, 1e-6), reference.rms_norm(x, weight, 1e-6))
    near(triton_ops.layer_norm(x, weight, None, 1e-6), reference.layer_norm(x, weight, None, 1e-6))
    near(triton_ops.silu_mul(x), reference.silu_mul(x))


OPS: list[Callable[[Ops, Tensor], Tensor]] = [
    lambda ops, x: ops.rms_norm(x, torch.ones(64, device=x.device), 1e-6),
    lambda ops, x: ops.layer_norm(x, torch.ones(64, device=x.device), None, 1e-6),
    lambda ops, x: ops.silu_mul(x),
    lambda ops, x: ops.gelu_tanh_mul(x),
]


@pytest.mark.parametrize("run", OPS)
def test_a_row_depends_on_itself_alone(
    triton_ops: Ops, device: torch.device, run: Callable[[Ops, Tensor], Tensor]
) -> None:
    x = rows(device, 5, 64)
    alone = run(triton_ops, x[2:3].clone())
    x[1], x[3] = float("nan"), float("inf")
    assert torch.equal(run(triton_ops, x)[2:3], alone)


@pytest.mark.parametrize("run", OPS)
def test_no_rows_give_no_rows(triton_ops: Ops, device: torch.device, run: Callable[[Ops, Tensor], Tensor]) -> None:
    assert run(triton_ops, torch.empty(0, 64, device=device)).shape[0] == 0


def test_tensors_that_are_not_aligned_are_refused(triton_ops: Ops, device: torch.device) -> None:
    x = torch.randn(65, device=device)[1:].view(1, 64)
    with pytest.raises(KernelError, match="16 bytes"):
        triton_ops.rms_norm(x, torch.ones(64, device=device), 1e-6)
