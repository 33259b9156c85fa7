"""Routers and mixtures of experts in Triton beside the reference: ties, groups, few rows, every kind of weight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from kernels import dispatch
from kernels.contracts import Ops, Weight
from kernels.triton.grouping import group_slots
from tests.kernels.conftest import assert_near
from tests.kernels.test_coded_weights import integers
from tests.kernels.test_experts import HIDDEN, INNER, blocks, routed
from tests.kernels.test_linear import gguf_rows
from tests.kernels.triton.test_linear import floats, on

Experts = list[tuple[list[Weight], Weight]]


@pytest.mark.parametrize(
    "settings",
    [
        {"topk": 2},
        {"topk": 8, "normalize": True},
        {"topk": 3, "scoring": "sigmoid", "scale": 2.5},
        {"topk": 4, "groups": 4, "topk_groups": 2},
        {"topk": 24},
    ],
    ids=str,
)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_routers_agree(
    triton_ops: Ops, reference: Ops, device: torch.device, settings: dict[str, Any], biased: bool, dtype: torch.dtype
) -> None:
    """24 experts, no power of two. bfloat16 logits tie often."""
    logits = (torch.randn(6, 24, device=device) * 2).to(dtype)
    logits[5] = 1.0
    bias = torch.randn(24, device=device) - 2.0 if biased else None
    ids, shares = triton_ops.route(logits, bias=bias, **settings)
    expected_ids, expected = reference.route(logits, bias=bias, **settings)
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(shares, expected, atol=1e-6, rtol=1e-5)


def test_the_router_of_deepseek_v3(triton_ops: Ops, reference: Ops, device: torch.device) -> None:
    """256 experts in 8 groups, of which 4 take part; 8 a row, by a bias."""
    logits, bias = torch.randn(4, 256, device=device), torch.randn(256, device=device) * 0.1
    settings: dict[str, Any] = {"groups": 8, "topk_groups": 4, "normalize": True, "scale": 2.5}
    ids, shares = triton_ops.route(logits, 8, "sigmoid", bias, **settings)
    expected_ids, expected = reference.route(logits, 8, "sigmoid", bias, **settings)
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(shares, expected, atol=1e-6, rtol=1e-5)


def test_rows_of_nan_and_of_minus_infinity_go_to_experts_that_exist(triton_ops: Ops, device: torch.device) -> None:
    logits = torch.full((2, 6), float("nan"), device=device)
    logits[1] = float("-inf")
    ids, shares = triton_ops.route(logits, 3)
    assert ids.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert bool(shares.isnan().all())


def test_slots_are_in_the_order_of_their_experts(triton_ops: Ops, device: torch.device) -> None:
    ids = torch.tensor([[2, 0], [2, 3], [0, 2], [2, 0]], dtype=torch.int32, device=device)
    order, owners = group_slots(ids, 0, 4, 2)
    none = ids.numel()
    used = owners.tolist().index(-1)
    assert owners[:used].tolist() == [0, 0, 2, 2, 3]
    assert order.view(-1, 2)[:used].tolist() == [[1, 4], [7, none], [0, 2], [5, 6], [3, none]]
    assert owners[used:].eq(-1).all()


def test_experts_elsewhere_have_no_slots(triton_ops: Ops, device: torch.device) -> None:
    ids = torch.tensor([[2, 0], [2, 3], [0, 2], [1, 0]], dtype=torch.int32, device=device)
    order, owners = group_slots(ids, 2, 2, 4)
    assert owners.tolist()[:2] == [0, 1]
    assert order.view(-1, 4)[:2].tolist() == [[0, 2, 5, 8], [3, 8, 8, 8]]
    _, owners = group_slots(ids[:1], 2, 8, 4)
    assert owners.tolist() == [0, -1]


def check(
    ops: Ops,
    reference: Ops,
    device: torch.device,
    experts: Experts,
    rows: int = 5,
    topk: int = 2,
    quantization: str | None = None,
    dtype: torch.dtype = torch.float32,
    hidden: int = HIDDEN,
) -> str:
    """The mixture is the reference's; the form of its weights."""
    there: Experts = [([on(device, part) for part in pair], on(device, down)) for pair, down in experts]
    ids, shares = (part.to(device) for part in routed(rows, len(experts), topk))
    x = torch.randn(rows, hidden, device=device).to(dtype)
    packed = ops.pack_experts(there, dtype, quantization)
    expected = reference.experts(x, ids, shares, reference.pack_experts(there, dtype, quantization))
    scale = max(1.0, float(expected.abs().max())) if rows else 1.0
    y = ops.experts(x, ids, shares, packed)
    assert y.dtype is dtype
    assert_near(y / scale, expected / scale)
    return str(packed.data.up.form)


@pytest.mark.parametrize(("rows", "topk"), [(0, 2), (1, 1), (3, 2), (40, 1), (9, 6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dense_experts(
    triton_ops: Ops, reference: Ops, device: torch.device, rows: int, topk: int, dtype: torch.dtype
) -> None:
    assert check(triton_ops, reference, device, blocks(6, dtype), rows, topk, dtype=dtype) == "dense"


def test_few_rows_among_many_experts_get_a_block_each(triton_ops: Ops, reference: Ops, device: torch.device) -> None:
    check(triton_ops, reference, device, blocks(16), rows=2, topk=2)
    check(triton_ops, reference, device, blocks(16), rows=3, topk=2)


def test_gelu_gates_too(triton_ops: Ops, reference: Ops, device: torch.device) -> None:
    experts = [([part.to(device) for part in pair], down.to(device)) for pair, down in blocks(3)]  # type: ignore[union-attr]
    ids, shares = (part.to(device) for part in routed(4, 3, 2))
    x = torch.randn(4, HIDDEN, device=device)
    packed, plain = (ops.pack_experts(experts, torch.float32) for ops in (triton_ops, reference))
    y = triton_ops.experts(x, ids, shares, packed, "gelu_tanh")
    assert_near(y, reference.experts(x, ids, shares, plain, "gelu_tanh"))


def coded(make: Any, count: int, hidden: int, inner: int, **changes: Any) -> Experts:
    """Experts of weights that come quantized."""
    shapes = ((inner, hidden), (inner, hidden), (hidden, inner))
    made = [[replace(make(*shape), **changes) for shape in shapes] for _ in range(count)]
    return [([gate, up], down) for gate, up, down in made]


def test_experts_of_integer_codes(triton_ops: Ops, reference: Ops, device: torch.device) -> None:
    for bits, asymmetric, form in ((4, True, "codes4"), (3, False, "codes4"), (8, True, "codes8")):
        experts = coded(lambda rows, width: integers(rows, width, bits, 16, asymmetric), 4, HIDDEN, INNER)  # noqa: B023
        assert check(triton_ops, reference, device, experts) == form


def test_experts_of_int8_codes(triton_ops: Ops, reference: Ops, device: torch.device) -> None:
    experts = coded(lambda rows, width: integers(rows, width, 8, width, False), 3, 48, 32, activations="int8")
    assert check(triton_ops, reference, device, experts) == "int8"
    static: dict[str, Any] = {"activations": "int8", "input_scale": 0.02, "input_zero": 9.0}
    experts = coded(lambda rows, width: integers(rows, width, 8, width, False), 3, 48, 32, **static)
    assert check(triton_ops, reference, device, experts) == "int8"


@pytest.mark.parametrize("block", [None, (128, 128)])
def test_experts_of_float8_codes(
    triton_ops: Ops, reference: Ops, device: torch.device, block: tuple[int, int] | None
) -> None:
    experts = coded(lambda rows, width: floats(rows, width, block, rounded=True), 3, 256, 144)
    assert check(triton_ops, reference, device, experts, hidden=256) == "fp8"
    experts = coded(lambda rows, width: floats(rows, width, block), 3, 256, 144)
    assert check(triton_ops, reference, device, experts, hidden=256) == "float8"


def test_experts_of_gguf_blocks(triton_ops: Ops, reference: Ops, device: torch.device) -> None:
    experts = coded(lambda rows, width: gguf_rows("Q4_K", rows, width), 2, 256, 256)
    assert check(triton_ops, reference, device, experts, quantization="gguf", hidden=256) == "codes4"


def test_experts_quantized_on_load(triton_ops: Ops, reference: Ops, device: torch.device) -> None:
    assert check(triton_ops, reference, device, blocks(3), quantization="int8") == "int8"


def test_experts_with_columns_of_their_own_are_widened(triton_ops: Ops, reference: Ops, device: torch.device) -> None:
    experts = coded(lambda rows, width: integers(rows, width, 4, 16), 3, HIDDEN, INNER)
    mixed: Experts = []
    for (gate, up), down in experts:
        order = torch.randperm(HIDDEN)
        mixed.append(([replace(part, columns=order) for part in (gate, up)], down))  # type: ignore[type-var]
    assert check(triton_ops, reference, device, mixed) == "dense"


def test_halves_of_the_experts_sum_to_all_of_them(triton_ops: Ops, device: torch.device) -> None:
    experts = [([part.to(device) for part in pair], down.to(device)) for pair, down in blocks(6)]  # type: ignore[union-attr]
    x = torch.randn(8, HIDDEN, device=device)
    ids, shares = (part.to(device) for part in routed(8, 6, 3))
    whole = triton_ops.experts(x, ids, shares, triton_ops.pack_experts(experts, torch.float32))
    halves: list[Tensor] = []
    for some in (range(2), range(2, 6)):
        packed = triton_ops.pack_experts(experts[some.start : some.stop], torch.float32, local=some)
        halves.append(triton_ops.experts(x, ids, shares, packed))
    assert_near(halves[0] + halves[1], whole)


def test_a_row_is_bitwise_the_same_in_any_company(device: torch.device) -> None:
    ops = dispatch.load("triton", device=device, deterministic=True)
    experts = [([part.to(device) for part in pair], down.to(device)) for pair, down in blocks(8)]  # type: ignore[union-attr]
    x = torch.randn(12, HIDDEN, device=device)
    ids, shares = (part.to(device) for part in routed(12, 8, 2))
    packed = ops.pack_experts(experts, torch.float32)
    together = ops.experts(x, ids, shares, packed)
    order = torch.randperm(12, device=device)
    assert torch.equal(ops.experts(x[order], ids[order], shares[order], packed), together[order])
    # Alone it takes the path of few rows.
    assert torch.equal(ops.experts(x[4:5], ids[4:5], shares[4:5], packed), together[4:5])
    x[5] = float("nan")
    assert torch.equal(ops.experts(x, ids, shares, packed)[:5], together[:5])
