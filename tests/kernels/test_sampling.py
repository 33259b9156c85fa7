"""Token choice: ties, masks, truncation by rank and mass, and one draw per (seed, position)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.contracts import KernelError, Ops
from tests.kernels.conftest import TOLERANCES

VOCABULARY = 1823


def draw(ops: Ops, logits: Tensor, uniforms: Tensor, **settings: float) -> Tensor:
    rows = logits.shape[0]
    return ops.sample(
        logits,
        torch.full((rows,), settings.get("temperature", 1.0)),
        torch.full((rows,), int(settings.get("top_k", 0)), dtype=torch.int32),
        torch.full((rows,), settings.get("top_p", 1.0)),
        torch.full((rows,), settings.get("min_p", 0.0)),
        uniforms,
    )


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("vocabulary", [2, 17, VOCABULARY, 49152])
def test_greedy_agrees(cpu: Ops, reference: Ops, dtype: torch.dtype, vocabulary: int) -> None:
    logits = (torch.randn(5, vocabulary) * 4).to(dtype)
    ids, logprobs = cpu.greedy(logits)
    expected_ids, expected = reference.greedy(logits)
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(logprobs, expected, atol=1e-4, rtol=1e-5)


@pytest.fixture(params=["cpu", "reference"])
def either(request: pytest.FixtureRequest, cpu: Ops, reference: Ops) -> Ops:
    return cpu if request.param == "cpu" else reference


@pytest.fixture(params=["fast", "deterministic"])
def fast_or_exact(request: pytest.FixtureRequest, cpu: Ops, exact: Ops) -> Ops:
    return cpu if request.param == "fast" else exact


def test_equal_logits_go_to_the_lowest_id(either: Ops) -> None:
    logits = torch.zeros(2, 100)
    logits[0, [90, 33, 34]] = 5.0
    assert either.greedy(logits)[0].tolist() == [33, 0]


def test_nan_and_minus_infinity_never_win(either: Ops) -> None:
    logits = torch.full((1, 40), float("-inf"))
    logits[0, 5], logits[0, 6], logits[0, 38] = float("nan"), -3.0, -4.0
    ids, logprobs = either.greedy(logits)
    assert ids.tolist() == [6]
    assert float(logprobs) == pytest.approx(-0.3133, abs=1e-3)
    for uniform in (0.0, 0.5, 0.9999999):
        picked = draw(either, logits, torch.tensor([uniform], dtype=torch.float64), top_p=0.99)
        assert int(picked) in (6, 38)


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
def test_draws_agree_with_the_full_sort(cpu: Ops, reference: Ops, settings: dict[str, float], spread: float) -> None:
    logits = torch.randn(40, VOCABULARY) * spread
    uniforms = torch.rand(40, dtype=torch.float64)
    got, expected = draw(cpu, logits, uniforms, **settings), draw(reference, logits, uniforms, **settings)
    # float32 and float64 exponentials may fall on two sides of a border, for a row in a thousand.
    assert int((got != expected).sum()) <= 1


def test_equal_masses_at_the_cut_keep_the_lower_ids(cpu: Ops, reference: Ops) -> None:
    logits = torch.zeros(50, 64)
    uniforms = torch.arange(50, dtype=torch.float64) / 50
    got = draw(cpu, logits, uniforms, top_k=10)
    assert torch.equal(got, draw(reference, logits, uniforms, top_k=10))
    assert set(got.tolist()) == set(range(10))


def test_temperature_zero_is_greedy_whatever_else_is_set(cpu: Ops) -> None:
    logits = torch.randn(6, VOCABULARY)
    got = draw(cpu, logits, torch.rand(6, dtype=torch.float64), temperature=0.0, top_p=0.1, top_k=3)
    assert torch.equal(got, cpu.greedy(logits)[0])


def test_a_row_draws_the_same_alone_and_in_a_batch(fast_or_exact: Ops) -> None:
    logits, uniforms = torch.randn(64, 4096) * 3, torch.rand(64, dtype=torch.float64)
    together = draw(fast_or_exact, logits, uniforms, top_p=0.9, temperature=0.8)
    alone = [draw(fast_or_exact, logits[i : i + 1], uniforms[i : i + 1], top_p=0.9, temperature=0.8) for i in range(64)]
    assert torch.equal(together, torch.cat(alone))


def test_philox_agrees_for_any_seed_and_position(cpu: Ops, reference: Ops) -> None:
    limit = 2**63 - 1
    seeds = torch.cat((torch.randint(-limit, limit, (200,)), torch.tensor([0, -1, limit])))
    positions = torch.cat((torch.randint(0, limit, (200,)), torch.tensor([0, 1, limit])))
    got = cpu.philox_uniform(seeds, positions)
    assert torch.equal(got, reference.philox_uniform(seeds, positions))
    assert bool(((got >= 0) & (got < 1)).all())


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("topk", [0, 1, 20])
def test_row_stats_agree(cpu: Ops, reference: Ops, dtype: torch.dtype, topk: int) -> None:
    logits = (torch.randn(9, VOCABULARY) * 3).to(dtype)
    logits[0] = float("-inf")
    logits[0, 7], logits[0, 8] = 1.0, 0.5
    tokens = torch.randint(0, VOCABULARY, (9,))
    tokens[0] = 7
    got, expected = cpu.row_stats(logits, tokens, topk), reference.row_stats(logits, tokens, topk)
    for name in ("logprob", "logsumexp", "entropy", "margin", "top_logprobs"):
        torch.testing.assert_close(getattr(got, name), getattr(expected, name), atol=2e-4, rtol=2e-4, msg=name)
    assert torch.equal(got.rank, expected.rank)
    assert torch.equal(got.top_ids, expected.top_ids)


def test_a_tie_at_the_top_has_no_margin(cpu: Ops) -> None:
    logits = torch.zeros(1, 33)
    logits[0, [3, 19]] = 4.0
    assert float(cpu.row_stats(logits, torch.tensor([3])).margin) == 0.0


def test_a_token_outside_the_vocabulary_is_refused(cpu: Ops) -> None:
    with pytest.raises(KernelError, match="vocabulary 10"):
        cpu.row_stats(torch.zeros(1, 10), torch.tensor([10]))


@pytest.mark.parametrize("vocabulary", [64, 1000, 1823])
def test_bitmask_forbids_the_same_tokens(cpu: Ops, reference: Ops, vocabulary: int) -> None:
    words = -(-vocabulary // 32)
    mask = torch.randint(-(2**31), 2**31 - 1, (3, words), dtype=torch.int32)
    mask[0], mask[1, : words // 2] = -1, 0
    logits = torch.randn(5, vocabulary)
    expected = logits.clone()
    rows = torch.tensor([4, 0, 2])
    cpu.apply_token_bitmask(logits, mask, rows)
    reference.apply_token_bitmask(expected, mask, rows)
    assert torch.equal(logits, expected)


def test_a_short_mask_forbids_the_padding_of_the_vocabulary(cpu: Ops) -> None:
    logits = torch.zeros(1, 100)
    cpu.apply_token_bitmask(logits, torch.full((1, 2), -1, dtype=torch.int32), torch.tensor([0]))
    assert bool((logits[0, 64:] == float("-inf")).all())
    assert bool((logits[0, :64] == 0).all())
