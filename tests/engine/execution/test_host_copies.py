"""A step of decodes looks at its results once, packed into one copy, and they are what looking one by one gives."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.execution.host_copies import HostCopies, pack, unpack
from engine.execution.kernel_timer import KernelClock
from engine.execution.sampler import NUM_OBSERVED_POSITIONS, Sampler
from engine.requests import SamplingParams
from engine.step import SampledToken, Work
from kernels import dispatch
from tests.fakes.hand_steps import GREEDY, HandSequence
from tests.fakes.watched_results import WatchedResults

VOCAB = 50
CPU = torch.device("cpu")
DRAWN = SamplingParams(temperature=1.0, top_p=0.9)
MIXES = {
    "greedy": [GREEDY] * 3,
    "drawn": [DRAWN] * 3,
    "top logprobs": [replace(GREEDY, logprobs=2), GREEDY, replace(GREEDY, logprobs=4)],
    "both": [GREEDY, replace(DRAWN, logprobs=3), DRAWN],
}


def work_of(params: list[SamplingParams], generated: int) -> list[Work]:
    """The middle one is always at its first position, so that some are described and others not."""
    made = []
    for slot, asked in enumerate(params):
        sequence = HandSequence([5, 6, 7], asked, seed=slot)
        sequence.token_ids += [9] * (0 if slot == 1 else generated)
        made.append(Work(slot, sequence, len(sequence.token_ids) - 1, 1, True, True))
    return made


def sampled(
    copies: HostCopies, params: list[SamplingParams], generated: int, sound: torch.Tensor | None = None
) -> tuple[dict[int, SampledToken], dict[int, Exception]]:
    sampler = Sampler(dispatch.load("reference", "cpu"), VOCAB, 4, frozenset({2}), CPU, KernelClock(), copies)
    work = work_of(params, generated)
    for item in work:
        sampler.admit(item.slot, item.sequence)
    logits = torch.randn(len(work), VOCAB, generator=torch.Generator().manual_seed(4))
    return sampler.sample(work, logits, sound)


@pytest.mark.parametrize("generated", [0, NUM_OBSERVED_POSITIONS])
@pytest.mark.parametrize("params", MIXES.values(), ids=MIXES)
def test_packed_results_are_those_looked_at_one_by_one(params: list[SamplingParams], generated: int) -> None:
    expected, _ = sampled(HostCopies(CPU), params, generated)
    copies = WatchedResults()
    assert sampled(copies, params, generated, torch.ones(3, dtype=torch.bool)) == (expected, {})
    assert copies.fetches == 1


@pytest.mark.parametrize("params", [GREEDY, replace(GREEDY, logprobs=2)], ids=["plain", "with top logprobs"])
def test_a_step_of_greedy_decodes_looks_at_nothing_that_was_not_fetched(
    params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the sampler's own side: the ops here are stand-ins that a GPU has as kernels."""
    copies = WatchedResults()
    sampler = Sampler(dispatch.load("reference", "cpu"), VOCAB, 4, frozenset({2}), CPU, KernelClock(), copies)
    work = work_of([params] * 3, 0)
    for item in work:
        sampler.admit(item.slot, item.sequence)
    logits = torch.randn(3, VOCAB)
    copies.watch(monkeypatch)
    tokens, _ = sampler.sample(work, logits, torch.ones(3, dtype=torch.bool))
    assert len(tokens) == 3
    with pytest.raises(AssertionError, match="not fetched"):
        logits.tolist()


def test_a_row_that_is_not_sound_is_a_fault_and_no_token() -> None:
    params = [GREEDY, replace(GREEDY, allowed_token_ids=(3, 4)), DRAWN]
    for bad in range(3):
        tokens, faults = sampled(WatchedResults(), params, 0, torch.tensor([row != bad for row in range(3)]))
        assert list(faults) == [bad]
        assert sorted(tokens) == [row for row in range(3) if row != bad]


def test_packing_keeps_every_bit_and_shape() -> None:
    parts = [
        torch.tensor([True, False, True]),
        torch.tensor([[1.5, float("nan")], [-0.0, float("inf")]]),
        torch.tensor([2**40 + 1, -1]),
        torch.zeros(2, 0, dtype=torch.int64),
        torch.arange(6, dtype=torch.int32).view(2, 3).t(),
    ]
    for part, found in zip(parts, unpack(pack(parts), parts), strict=True):
        assert (found.dtype, found.shape) == (part.dtype, part.shape)
        assert found.contiguous().view(torch.uint8).equal(part.contiguous().view(torch.uint8))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_nothing_else_waits_for_the_device() -> None:
    """CUDA's own detector: any other synchronizing call is an error."""
    cuda = torch.device("cuda")
    copies = HostCopies(cuda)
    sampler = Sampler(dispatch.load("auto", cuda), VOCAB, 4, frozenset({2}), cuda, KernelClock(), copies)
    work = work_of([GREEDY, DRAWN, replace(GREEDY, logprobs=2)], 0)
    for item in work:
        sampler.admit(item.slot, item.sequence)
    logits, sound = torch.randn(3, VOCAB, device=cuda), torch.ones(3, dtype=torch.bool, device=cuda)
    sampler.sample(work, logits, sound)  # compiles
    fetch = copies._bring

    def allowed(packed: torch.Tensor) -> torch.Tensor:
        torch.cuda.set_sync_debug_mode("default")
        host = fetch(packed)
        torch.cuda.set_sync_debug_mode("error")
        return host

    copies._bring = allowed  # type: ignore[method-assign]
    torch.cuda.set_sync_debug_mode("error")
    try:
        tokens, _ = sampler.sample(work, logits, sound)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(tokens) == 3
