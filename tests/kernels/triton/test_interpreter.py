"""The interpreter computes what a GPU would: casts and products that Triton 3.8 alone gets wrong."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
import triton.language as tl

from kernels.contracts import Ops
from kernels.triton.launch import Pointer, kernel, launch


@kernel
def cast(x: Pointer, out: Pointer, SIZE: tl.constexpr) -> None:
    place = tl.arange(0, SIZE)
    tl.store(out + place, tl.load(x + place).to(out.dtype.element_ty))


@kernel
def multiply(x: Pointer, y: Pointer, out: Pointer, SIZE: tl.constexpr) -> None:
    place = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    tl.store(out + place, tl.dot(tl.load(x + place), tl.load(y + place)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float16])
def test_casts_round_to_the_nearest_even(triton_ops: Ops, device: torch.device, dtype: torch.dtype) -> None:
    x = torch.randn(1024, device=device) * 20
    x[:4] = torch.tensor([31.75, 7.78, 1.00390625, 1.01171875])
    out = torch.empty(1024, dtype=dtype, device=device)
    launch(cast, (1,), {"x": x, "out": out}, {"SIZE": 1024})
    assert torch.equal(out.float(), x.to(dtype).float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_products_are_those_of_the_numbers(triton_ops: Ops, device: torch.device, dtype: torch.dtype) -> None:
    x, y = (torch.randn(16, 16, device=device).to(dtype) for _ in range(2))
    out = torch.empty(16, 16, device=device)
    launch(multiply, (1,), {"x": x, "y": y, "out": out}, {"SIZE": 16})
    expected: Tensor = x.double() @ y.double()
    torch.testing.assert_close(out.double(), expected, atol=1e-3 if dtype is torch.float32 else 1e-5, rtol=1e-3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")
def test_the_interpreter_alone_is_still_wrong() -> None:
    """When this fails, Triton has mended its casts: remove `kernels/triton/interpreter.py`."""
    program = (
        "import torch, triton.language as tl\n"
        "from kernels.triton.launch import launch\n"
        "from tests.kernels.triton.test_interpreter import cast\n"
        "x = torch.full((16,), 1.01171875)\n"
        "out = torch.empty(16, dtype=torch.bfloat16)\n"
        "launch(cast, (1,), {'x': x, 'out': out}, {'SIZE': 16})\n"
        "print(float(out[0]) == float(x[0].bfloat16()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert done.stdout == "False\n", done.stderr
