"""Choosing tokens in Triton: the cases of the CPU back end, and rows that only a device sees lie apart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.contracts import KernelError, Ops
from tests.kernels.test_sampling import draw as draw_on_host

NAN, NONE = float("nan"), float("-inf")


def draw(ops: Ops, logits: Tensor, uniforms: Tensor, **settings: float) -> Tensor:
    """On the device of the logits."""
    with torch.device(logits.device):
        return draw_on_host(ops, logits, uniforms.to(logits.device), **settings)


def logits_of(device: torch.device, rows: int, vocabulary: int, spread: float = 3.0) -> Tensor:
    return (torch.randn(rows, vocabulary) * spread).to(device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [1, 2, 17, 1823, 9001])
def test_greedy_agrees(
    triton_ops: Ops, reference: Ops, device: torch.device, dtype: torch.dtype, vocabulary: int
) -> None:
    logits = logits_of(device, 3, vocabulary).to(dtype)
    ids, logprobs = triton_ops.greedy(logits)
    expected_ids, expected = reference.greedy(logits)
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=1e-5)


def test_equal_logits_go_to_the_lowest_id(triton_ops: Ops, device: torch.device) -> None:
    logits = torch.zeros(3, 5000, device=device)
    logits[0, [4900, 33, 34]] = 5.0
    logits[1, [4097, 4096]] = 5.0
    assert triton_ops.greedy(logits)[0].tolist() == [33, 4096, 0]


def test_nan_and_minus_infinity_never_win(triton_ops: Ops, device: torch.device) -> None:
    logits = torch.full((1, 40), NONE, device=device)
    logits[0, 5], logits[0, 6], logits[0, 38] = NAN, -3.0, -4.0
    ids, logprobs = triton_ops.greedy(logits)
    assert ids.tolist() == [6]
    assert float(logprobs) == pytest.approx(-0.3133, abs=1e-4)
    for uniform, expected in ((0.0, 6), (0.5, 6), (0.9999999, 38)):
        picked = draw(triton_ops, logits, torch.tensor([uniform], dtype=torch.float64), top_p=0.99)
        assert int(picked) == expected


def test_a_row_without_any_logit_gives_id_0(triton_ops: Ops, device: torch.device) -> None:
    logits = torch.full((2, 40), NONE, device=device)
    logits[1] = NAN
    half = torch.full((2,), 0.5, dtype=torch.float64)
    assert triton_ops.greedy(logits)[0].tolist() == [0, 0]
    assert draw(triton_ops, logits, half, top_p=0.5, top_k=3).tolist() == [0, 0]


def test_the_only_allowed_token_is_drawn(triton_ops: Ops, device: torch.device) -> None:
    logits = torch.full((1, 1500), NONE, device=device)
    logits[0, 1400] = -2.0
    for uniform in (0.0, 0.999):
        picked = draw(triton_ops, logits, torch.tensor([uniform], dtype=torch.float64), top_p=0.9, top_k=5)
        assert int(picked) == 1400


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.3},
        {"top_k": 1},
        {"top_k": 7},
        {"top_p": 0.5},
        {"top_p": 0.95, "temperature": 0.8},
        {"min_p": 0.05},
        {"top_k": 40, "top_p": 0.9, "min_p": 0.01, "temperature": 1.7},
        {"top_p": 1e-9},
        {"top_k": 5000},
    ],
    ids=str,
)
@pytest.mark.parametrize("spread", [0.01, 1.0, 8.0])
def test_draws_agree_with_the_full_sort(
    triton_ops: Ops, reference: Ops, device: torch.device, settings: dict[str, float], spread: float
) -> None:
    logits, uniforms = logits_of(device, 2, 1823, spread), torch.rand(2, dtype=torch.float64)
    expected = draw(reference, logits, uniforms, **settings)
    assert torch.equal(draw(triton_ops, logits, uniforms, **settings), expected)


def test_draws_agree_with_the_cpu(triton_ops: Ops, cpu: Ops, device: torch.device) -> None:
    """One seed, one token, on either device."""
    logits = logits_of(device, 12, 1823)
    seeds, positions = torch.arange(12) * 7919 - 5, torch.arange(12) + 100
    uniforms = triton_ops.philox_uniform(seeds.to(device), positions.to(device))
    assert torch.equal(uniforms.cpu(), cpu.philox_uniform(seeds, positions))
    expected = draw(cpu, logits.cpu(), uniforms.cpu(), top_p=0.9, temperature=0.8)
    assert torch.equal(draw(triton_ops, logits, uniforms, top_p=0.9, temperature=0.8).cpu(), expected)


def test_equal_masses_at_the_cut_keep_the_lower_ids(triton_ops: Ops, device: torch.device) -> None:
    logits = torch.zeros(10, 2100, device=device)
    uniforms = torch.arange(10, dtype=torch.float64) / 10
    assert draw(triton_ops, logits, uniforms, top_k=10).tolist() == list(range(10))
    logits[:, 2050:2060] = -1.0
    logits[:, 2060:] = 3.0
    assert draw(triton_ops, logits, uniforms, top_k=40)[-1] == 2060 + 36


@pytest.mark.parametrize(("top_p", "last"), [(0.5, 1), (0.500001, 2), (0.25, 0), (0.2500001, 1), (1.0, 3)])
def test_top_p_on_the_border_of_a_token(
    triton_ops: Ops, reference: Ops, device: torch.device, top_p: float, last: int
) -> None:
    """Four equal masses: what lies before the last survivor is less than top_p, and no more."""
    logits = torch.full((1, 70), NONE, device=device)
    logits[0, [3, 20, 40, 66]] = 1.0
    end = torch.tensor([0.9999], dtype=torch.float64)
    assert int(draw(triton_ops, logits, end, top_p=top_p)) == [3, 20, 40, 66][last]
    assert int(draw(reference, logits, end, top_p=top_p)) == [3, 20, 40, 66][last]


def test_temperature_zero_is_greedy_whatever_else_is_set(triton_ops: Ops, device: torch.device) -> None:
    logits = logits_of(device, 4, 1823)
    got = draw(triton_ops, logits, torch.rand(4, dtype=torch.float64), temperature=0.0, top_p=0.1, top_k=3)
    assert torch.equal(got, triton_ops.greedy(logits)[0])


def test_a_row_draws_the_same_alone_and_in_a_batch(triton_ops: Ops, device: torch.device) -> None:
    logits, uniforms = logits_of(device, 4, 4096), torch.rand(4, dtype=torch.float64)
    alone = [draw(triton_ops, logits[i : i + 1], uniforms[i : i + 1], top_p=0.9, temperature=0.8) for i in range(4)]
    logits[2] = NAN
    together = draw(triton_ops, logits, uniforms, top_p=0.9, temperature=0.8)
    assert [int(together[i]) for i in (0, 1, 3)] == [int(alone[i]) for i in (0, 1, 3)]


def test_philox_agrees_for_any_seed_and_position(triton_ops: Ops, reference: Ops, device: torch.device) -> None:
    limit = 2**63 - 1
    seeds = torch.cat((torch.randint(-limit, limit, (300,)), torch.tensor([0, -1, limit]))).to(device)
    positions = torch.cat((torch.randint(0, limit, (300,)), torch.tensor([0, 1, limit]))).to(device)
    got = triton_ops.philox_uniform(seeds, positions)
    assert torch.equal(got, reference.philox_uniform(seeds, positions))
    assert bool(((got >= 0) & (got < 1)).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("topk", [0, 1, 20])
def test_row_stats_agree(triton_ops: Ops, reference: Ops, device: torch.device, dtype: torch.dtype, topk: int) -> None:
    logits = logits_of(device, 4, 1823).to(dtype)
    logits[0] = NONE
    logits[0, 7], logits[0, 8] = 1.0, 0.5
    tokens = torch.randint(0, 1823, (4,)).to(device)
    tokens[0] = 7
    got, expected = triton_ops.row_stats(logits, tokens, topk), reference.row_stats(logits, tokens, topk)
    for name in ("logprob", "logsumexp", "entropy", "margin", "top_logprobs"):
        torch.testing.assert_close(getattr(got, name), getattr(expected, name), atol=1e-5, rtol=1e-5, msg=name)
    assert torch.equal(got.rank, expected.rank)
    assert torch.equal(got.top_ids, expected.top_ids)


def test_stats_of_a_tie_at_the_top(triton_ops: Ops, device: torch.device) -> None:
    logits = torch.zeros(1, 33, device=device)
    logits[0, [3, 19]] = 4.0
    stats = triton_ops.row_stats(logits, torch.tensor([19], device=device), 3)
    assert float(stats.margin) == 0.0
    assert int(stats.rank) == 1
    assert stats.top_ids.tolist() == [[3, 19, 0]]


def test_stats_pass_over_nan(triton_ops: Ops, device: torch.device) -> None:
    logits = torch.tensor([[0.0, NAN, 1.0, NAN]], device=device)
    stats = triton_ops.row_stats(logits, torch.tensor([0], device=device), 2)
    assert float(stats.logprob) == pytest.approx(-1.3133, abs=1e-4)
    assert (int(stats.rank), stats.top_ids.tolist()) == (2, [[2, 0]])


def test_a_token_outside_the_vocabulary_has_no_number(triton_ops: Ops, device: torch.device) -> None:
    """Ids on the host are refused; to look at those of a device would stop its stream."""
    logits, tokens = torch.zeros(1, 10, device=device), torch.tensor([10], device=device)
    if device.type == "cpu":
        with pytest.raises(KernelError, match="vocabulary 10"):
            triton_ops.row_stats(logits, tokens)
    else:
        assert bool(triton_ops.row_stats(logits, tokens).logprob.isnan())


@pytest.mark.parametrize("vocabulary", [64, 1000, 1823, 9001])
def test_bitmask_forbids_the_same_tokens(
    triton_ops: Ops, reference: Ops, device: torch.device, vocabulary: int
) -> None:
    words = -(-vocabulary // 32)
    mask = torch.randint(-(2**31), 2**31 - 1, (3, words), dtype=torch.int32)
    mask[0], mask[1, : words // 2] = -1, 0
    mask, rows = mask.to(device), torch.tensor([4, 0, 2], device=device)
    logits = logits_of(device, 5, vocabulary)
    expected = logits.clone()
    triton_ops.apply_token_bitmask(logits, mask, rows)
    reference.apply_token_bitmask(expected, mask, rows)
    assert torch.equal(logits, expected)


def test_a_short_mask_forbids_the_padding_of_the_vocabulary(triton_ops: Ops, device: torch.device) -> None:
    logits = torch.zeros(1, 100, device=device)
    mask = torch.full((1, 2), -1, dtype=torch.int32, device=device)
    triton_ops.apply_token_bitmask(logits, mask, torch.tensor([0], device=device))
    assert bool((logits[0, 64:] == NONE).all())
    assert bool((logits[0, :64] == 0).all())


def test_rows_of_a_padded_vocabulary(triton_ops: Ops, reference: Ops, device: torch.device) -> None:
    """A slice of wider logits: the stride is not the vocabulary, and what lies beside is never read or written."""
    wide = logits_of(device, 3, 1024)
    wide[:, 1000:] = 100.0
    logits, compact = wide[:, :1000], wide[:, :1000].contiguous()
    tokens, uniforms = torch.tensor([5, 6, 7], device=device), torch.rand(3, dtype=torch.float64)
    assert torch.equal(triton_ops.greedy(logits)[0], reference.greedy(compact)[0])
    assert torch.equal(draw(triton_ops, logits, uniforms, top_k=9), draw(reference, compact, uniforms, top_k=9))
    assert torch.equal(triton_ops.row_stats(logits, tokens).rank, reference.row_stats(compact, tokens).rank)
    triton_ops.apply_token_bitmask(logits, torch.zeros(1, 32, dtype=torch.int32, device=device), tokens[:1] - 3)
    assert bool((wide[:, 1000:] == 100.0).all())
    assert bool((wide[2, :1000] == NONE).all())
    assert torch.equal(wide[:2, :1000], compact[:2])


def test_no_rows_give_no_rows(triton_ops: Ops, device: torch.device) -> None:
    empty = torch.empty(0, 50, device=device)
    assert triton_ops.greedy(empty)[0].shape == (0,)
    assert draw(triton_ops, empty, torch.empty(0, dtype=torch.float64)).shape == (0,)
    assert triton_ops.row_stats(empty, torch.empty(0, dtype=torch.int64, device=device), 3).top_ids.shape == (0, 3)


def test_penalties_change_the_tokens_that_were_seen(triton_ops: Ops, reference: Ops, device: torch.device) -> None:
    """Rows of one, of no and of many tokens, in a slice of wider logits."""
    wide = logits_of(device, 4, 6000)
    logits, expected = wide[:, :5990], wide[:, :5990].clone()
    ids = torch.cat([torch.tensor([5989]), torch.randperm(5990)[:5000]]).to(device)
    starts, rows = torch.tensor([0, 1, 1, 5001], device=device), torch.tensor([3, 0, 1], device=device)
    times = torch.randint(0, 3, (5001,), device=device).float()
    numbers = [torch.tensor(values, device=device) for values in ([1.3, 1.0, 0.8], [0.5, 0.0, 0.1], [0.2, 1.0, -0.7])]
    triton_ops.apply_penalties(logits, rows, starts, ids, times, *numbers)
    reference.apply_penalties(expected, rows, starts, ids, times, *numbers)
    # A GPU may round a product and a difference at once.
    torch.testing.assert_close(logits, expected, atol=1e-6, rtol=3e-7)
