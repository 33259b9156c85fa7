"""Routers and mixtures of experts: who is chosen, with what share, and what a row gets of it."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

from kernels.contracts import KernelError, Ops, Weight
from tests.kernels.conftest import assert_near

NONE = float("-inf")
HIDDEN, INNER = 48, 32


def blocks(count: int, dtype: torch.dtype = torch.float32) -> list[tuple[list[Weight], Weight]]:
    """Gate, up and down of each expert."""
    shapes = ((INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER))
    made = [[(torch.randn(shape) * 0.2).to(dtype) for shape in shapes] for _ in range(count)]
    return [([gate, up], down) for gate, up, down in made]


def by_hand(x: Tensor, ids: Tensor, shares: Tensor, experts: list[tuple[list[Weight], Weight]]) -> Tensor:
    y = torch.zeros(x.shape[0], HIDDEN)
    for row, place in itertools.product(range(x.shape[0]), range(ids.shape[1])):
        (gate, up), down = experts[int(ids[row, place])]
        assert isinstance(gate, Tensor)
        assert isinstance(up, Tensor)
        assert isinstance(down, Tensor)
        inner = F.silu(x[row].float() @ gate.float().T) * (x[row].float() @ up.float().T)
        y[row] += shares[row, place] * (inner @ down.float().T)
    return y


def routed(rows: int, experts: int, topk: int) -> tuple[Tensor, Tensor]:
    ids = torch.stack([torch.randperm(experts)[:topk] for _ in range(rows)]) if rows else torch.empty(0, topk)
    return ids.to(torch.int32), torch.rand(rows, topk)


def test_the_likeliest_experts_share_by_softmax(reference: Ops) -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]])
    ids, shares = reference.route(logits, 2)
    assert (ids.dtype, ids.tolist()) == (torch.int32, [[1, 3]])
    torch.testing.assert_close(shares, logits.softmax(-1)[:, [1, 3]])
    _, shares = reference.route(logits, 2, normalize=True, scale=2.5)
    torch.testing.assert_close(shares, 2.5 * torch.tensor([[3.0, 2.0]]).softmax(-1))


def test_equal_logits_go_to_the_lowest_experts(reference: Ops) -> None:
    assert reference.route(torch.zeros(1, 6), 3)[0].tolist() == [[0, 1, 2]]
    assert reference.route(torch.tensor([[0.0, 2.0, 1.0, 2.0, 2.0]]), 3)[0].tolist() == [[1, 3, 4]]


def test_logits_that_round_to_one_score_are_told_apart(reference: Ops) -> None:
    assert reference.route(torch.tensor([[30.0, 31.0, 0.0]]), 1, "sigmoid")[0].tolist() == [[1]]


def test_a_bias_chooses_and_takes_no_share(reference: Ops) -> None:
    logits, bias = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([-1.0, 0.0, 1.0])
    ids, shares = reference.route(logits, 2, "sigmoid", bias, normalize=True)
    assert ids.tolist() == [[2, 1]]
    chosen = logits.sigmoid()[:, [2, 1]]
    torch.testing.assert_close(shares, chosen / chosen.sum())


def test_experts_outside_of_the_best_groups_are_never_chosen(reference: Ops) -> None:
    """Groups of two: the best single expert lies in a group whose two together are worse."""
    logits = torch.tensor([[5.0, -9.0, 2.0, 2.0, 1.0, 1.0]])
    assert reference.route(logits, 2, groups=3)[0].tolist() == [[0, 1]]
    assert reference.route(logits, 2, "sigmoid", torch.zeros(6), groups=3)[0].tolist() == [[2, 3]]


def test_negative_biased_scores_beat_those_of_other_groups(reference: Ops) -> None:
    bias = torch.tensor([-5.0, -6.0, -9.0, -9.0])
    assert reference.route(torch.zeros(1, 4), 2, "sigmoid", bias, groups=2)[0].tolist() == [[0, 1]]


def test_shares_of_nothing_stay_finite(reference: Ops) -> None:
    _, shares = reference.route(torch.full((1, 4), -200.0), 2, "sigmoid", normalize=True)
    assert bool(shares.isfinite().all())


def by_expert(ids: Tensor, shares: Tensor) -> Tensor:
    """Shares in the order of expert numbers, since libraries sort them otherwise."""
    return torch.zeros(ids.shape[0], 64).scatter_(1, ids.long(), shares)


@pytest.mark.parametrize("normalize", [False, True])
def test_routes_as_deepseek_v3_does(reference: Ops, normalize: bool) -> None:
    config = transformers.DeepseekV3Config(
        hidden_size=32, n_routed_experts=64, num_experts_per_tok=6, n_group=8, topk_group=3, norm_topk_prob=normalize
    )
    router = DeepseekV3TopkRouter(config)
    router.weight.data.normal_()
    router.e_score_correction_bias.data.normal_().sub_(1.0)
    x = torch.randn(20, 32)
    logits, shares, ids = router(x)
    ours_ids, ours = reference.route(
        logits,
        6,
        "sigmoid",
        router.e_score_correction_bias,
        groups=8,
        topk_groups=3,
        normalize=normalize,
        scale=config.routed_scaling_factor,
    )
    torch.testing.assert_close(by_expert(ours_ids, ours), by_expert(ids, shares))


@pytest.mark.parametrize("method", ["greedy", "group_limited_greedy"])
def test_routes_as_deepseek_v2_does(reference: Ops, method: str) -> None:
    config = transformers.DeepseekV2Config(
        hidden_size=32,
        n_routed_experts=64,
        num_experts_per_tok=6,
        n_group=8,
        topk_group=3,
        topk_method=method,
        routed_scaling_factor=16.0,
    )
    router = DeepseekV2TopkRouter(config)
    router.weight.data.normal_()
    logits, shares, ids = router(torch.randn(20, 32))
    groups = {"groups": 8, "topk_groups": 3} if method == "group_limited_greedy" else {}
    ours_ids, ours = reference.route(logits, 6, scale=16.0, **groups)  # type: ignore[arg-type]
    torch.testing.assert_close(by_expert(ours_ids, ours), by_expert(ids, shares))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"topk": 7}, "7 experts a row"),
        ({"topk": 0}, "0 experts a row"),
        ({"topk": 1, "scoring": "tanh"}, "scoring 'tanh'"),
        ({"topk": 1, "groups": 4}, "do not fit 6 experts"),
        ({"topk": 3, "groups": 3}, "3 experts a row, out of 2"),
    ],
)
def test_routers_that_no_model_has_are_refused(reference: Ops, settings: dict[str, int], message: str) -> None:
    with pytest.raises(KernelError, match=message):
        reference.route(torch.zeros(1, 6), **settings)  # type: ignore[arg-type]


@pytest.fixture(params=["cpu", "reference"])
def either(request: pytest.FixtureRequest, cpu: Ops, reference: Ops) -> Ops:
    return cpu if request.param == "cpu" else reference


@pytest.mark.parametrize(("rows", "topk"), [(1, 2), (7, 2), (30, 1), (5, 6), (0, 2)])
def test_a_row_is_the_weighted_sum_of_its_experts(either: Ops, rows: int, topk: int) -> None:
    experts, x = blocks(6), torch.randn(rows, HIDDEN)
    ids, shares = routed(rows, 6, topk)
    packed = either.pack_experts(iter(experts), torch.float32)
    assert (packed.first, packed.count, packed.hidden, packed.intermediate) == (0, 6, HIDDEN, INNER)
    assert_near(either.experts(x, ids, shares, packed), by_hand(x, ids, shares, experts))


def test_all_rows_may_go_to_one_expert(either: Ops) -> None:
    experts, x = blocks(4), torch.randn(9, HIDDEN)
    ids, shares = torch.full((9, 1), 2, dtype=torch.int32), torch.ones(9, 1)
    packed = either.pack_experts(experts, torch.float32)
    assert_near(either.experts(x, ids, shares, packed), by_hand(x, ids, shares, experts))


def test_a_row_is_bitwise_the_same_in_any_company(either: Ops) -> None:
    experts, x = blocks(5), torch.randn(12, HIDDEN)
    ids, shares = routed(12, 5, 3)
    packed = either.pack_experts(experts, torch.float32, deterministic=True)
    together = either.experts(x, ids, shares, packed)
    order = torch.randperm(12)
    assert torch.equal(either.experts(x[order], ids[order], shares[order], packed), together[order])
    assert torch.equal(either.experts(x[4:5], ids[4:5], shares[4:5], packed), together[4:5])


def test_halves_of_the_experts_sum_to_all_of_them(either: Ops) -> None:
    experts, x = blocks(6), torch.randn(8, HIDDEN)
    ids, shares = routed(8, 6, 3)
    whole = either.experts(x, ids, shares, either.pack_experts(experts, torch.float32))
    halves = [
        either.experts(x, ids, shares, either.pack_experts(experts[some.start : some.stop], torch.float32, local=some))
        for some in (range(2), range(2, 6))
    ]
    assert_near(halves[0] + halves[1], whole)


def test_nan_in_a_row_stays_there(either: Ops) -> None:
    experts, x = blocks(3), torch.randn(4, HIDDEN)
    ids, shares = routed(4, 3, 2)
    packed = either.pack_experts(experts, torch.float32)
    expected = either.experts(x, ids, shares, packed)
    x[1] = float("nan")
    y = either.experts(x, ids, shares, packed)
    assert torch.equal(y[[0, 2, 3]], expected[[0, 2, 3]])
    assert bool(y[1].isnan().all())


def test_experts_that_do_not_fit_are_refused(either: Ops) -> None:
    experts = blocks(2)
    with pytest.raises(KernelError, match="2 experts given"):
        either.pack_experts(experts, torch.float32, local=range(3))
    with pytest.raises(KernelError, match="0 experts given"):
        either.pack_experts([], torch.float32)
    with pytest.raises(KernelError, match="shapes"):
        either.pack_experts([(experts[0][0][:1], experts[0][1])], torch.float32)
    packed = either.pack_experts(experts, torch.float32)
    with pytest.raises(KernelError, match="activation"):
        either.experts(torch.zeros(1, HIDDEN), *routed(1, 2, 1), packed, "relu")
    with pytest.raises(KernelError, match="rows"):
        either.experts(torch.zeros(2, HIDDEN), *routed(1, 2, 1), packed)
