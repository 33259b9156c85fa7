"""The sampler: processors and their order, the draw, and what is said about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from engine.execution.kernel_timer import KernelClock
from engine.execution.logits_processors import RowProcessor, TokenCounts, needs_processing, penalize
from engine.execution.sampler import Sampler
from engine.requests import SamplingParams
from engine.step import SampledToken, Work
from kernels import dispatch
from tests.fakes.hand_steps import GREEDY, HandSequence

VOCAB = 50
EOS = frozenset({2})
CPU = torch.device("cpu")
OPS = dispatch.load("auto", "cpu")


def make_sampler(slots: int = 16) -> Sampler:
    return Sampler(dispatch.load("auto", "cpu"), VOCAB, slots, EOS, CPU, KernelClock())


def logits_for(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def draw(
    sequences: list[HandSequence], logits: torch.Tensor, sampler: Sampler | None = None
) -> dict[int, SampledToken]:
    sampler = sampler or make_sampler()
    work = []
    for slot, sequence in enumerate(sequences):
        sampler.admit(slot, sequence)
        work.append(Work(slot, sequence, len(sequence.token_ids) - 1, 1, True, True))
    tokens, faults = sampler.sample(work, logits)
    assert faults == {}
    return tokens


def processed(sequence: HandSequence, row: torch.Tensor | None = None) -> torch.Tensor:
    """The row after masks, bias and penalties; another row beside it must stay as it is."""
    rows = torch.zeros(2, VOCAB)
    if row is not None:
        rows[1] = row
    processor = RowProcessor(sequence, EOS, CPU)
    processor.apply(rows[1])
    penalize(OPS, rows, [(1, processor)])
    assert not rows[0].any()
    return rows[1]


def generated(prompt: list[int], output: list[int], params: SamplingParams) -> HandSequence:
    return HandSequence(prompt + output, params, num_prompt_tokens=len(prompt))


class FixedGrammar:
    def __init__(self, allowed: set[int]) -> None:
        self._allowed = allowed

    def fill_bitmask(self, row: np.ndarray) -> None:
        row[:] = 0
        for token_id in self._allowed:
            row[token_id // 32] |= np.int32(np.uint32(1 << (token_id % 32)).view(np.int32))


def test_greedy_takes_the_most_likely_token() -> None:
    logits = logits_for(3)
    tokens = draw([HandSequence([5]) for _ in range(3)], logits)
    assert [tokens[row].token_id for row in range(3)] == logits.argmax(dim=1).tolist()


def test_temperature_zero_overrides_the_other_limits() -> None:
    params = SamplingParams(temperature=0.0, top_p=0.1, top_k=3, min_p=0.5)
    logits = logits_for(1)
    assert draw([HandSequence([5], params)], logits)[0].token_id == int(logits.argmax())


def test_greedy_and_sampled_rows_share_a_batch() -> None:
    logits = logits_for(4)
    tokens = draw([HandSequence([5], GREEDY if row % 2 else SamplingParams(), seed=row) for row in range(4)], logits)
    assert [tokens[row].token_id for row in (1, 3)] == logits[[1, 3]].argmax(dim=1).tolist()


def test_a_tiny_temperature_is_still_a_draw_without_overflow() -> None:
    logits = logits_for(1)
    token = draw([HandSequence([5], SamplingParams(temperature=1e-6))], logits)[0]
    assert token.token_id == int(logits.argmax())


def test_draws_follow_the_distribution() -> None:
    logits = torch.full((1, VOCAB), -20.0)
    logits[0, [7, 8, 9]] = torch.tensor([0.5, 0.3, 0.2]).log()
    sampler, counts = make_sampler(1), np.zeros(VOCAB)
    for seed in range(3000):
        counts[draw([HandSequence([5], SamplingParams(), seed=seed)], logits, sampler)[0].token_id] += 1
    assert counts[[7, 8, 9]] / 3000 == pytest.approx([0.5, 0.3, 0.2], abs=0.03)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(top_k=2), {7, 8}),
        (SamplingParams(top_p=0.6), {7, 8}),
        (SamplingParams(min_p=0.5), {7, 8}),
        (SamplingParams(top_p=0.4), {7}),
    ],
    ids=["top_k", "top_p", "min_p", "top_p keeps one"],
)
def test_limits_cut_the_unlikely_tail(params: SamplingParams, kept: set[int]) -> None:
    logits = torch.full((1, VOCAB), -20.0)
    logits[0, [7, 8, 9]] = torch.tensor([0.5, 0.3, 0.2]).log()
    sampler = make_sampler(1)
    seen = {draw([HandSequence([5], params, seed=seed)], logits, sampler)[0].token_id for seed in range(200)}
    assert seen == kept


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    logits = logits_for(1)
    alone = draw([HandSequence([5, 6], SamplingParams(), seed=11)], logits)[0].token_id
    company = [HandSequence([i, 3], SamplingParams(temperature=0.5), seed=i) for i in range(9)]
    together = draw([*company, HandSequence([9, 9], SamplingParams(), seed=11)], logits.repeat(10, 1))
    assert together[9].token_id == alone


def test_seeds_of_sixty_four_bits_are_accepted() -> None:
    tokens = draw(
        [HandSequence([5], SamplingParams(), seed=seed) for seed in (2**64 - 1, -1)], logits_for(1).repeat(2, 1)
    )
    assert tokens[0].token_id == tokens[1].token_id


def test_logits_stay_as_they_were() -> None:
    logits = logits_for(2)
    before = logits.clone()
    draw([HandSequence([5], replace(GREEDY, logit_bias={3: 90.0})), HandSequence([5])], logits)
    assert torch.equal(logits, before)


def test_log_probabilities_are_raw_whatever_the_processors_did() -> None:
    logits = logits_for(1)
    token = draw([HandSequence([5], replace(GREEDY, logit_bias={3: 90.0}))], logits)[0]
    assert token.token_id == 3
    assert token.logprob == pytest.approx(float(logits[0].log_softmax(dim=0)[3]), abs=1e-4)


def test_a_grammar_mask_binds_greedy_and_sampled_rows() -> None:
    sequences = [HandSequence([5], params, grammar=FixedGrammar({31, 32})) for params in (GREEDY, SamplingParams())]
    assert {token.token_id for token in draw(sequences, logits_for(2)).values()} <= {31, 32}


def test_a_released_slot_forgets_its_processors() -> None:
    sampler, logits = make_sampler(1), logits_for(1)
    draw([HandSequence([5], replace(GREEDY, allowed_token_ids=(4,)))], logits, sampler)
    assert draw([HandSequence([5])], logits, sampler)[0].token_id == int(logits.argmax())


def test_a_slot_taken_again_uses_the_parameters_of_who_took_it() -> None:
    sampler, logits = make_sampler(2), logits_for(2)
    hot = SamplingParams(temperature=1.0)
    first = draw([HandSequence([5], hot, seed=1), HandSequence([5], hot, seed=2)], logits, sampler)
    for greedy, sampled in ((0, 1), (1, 0)):
        sequences = [HandSequence([5], hot, seed=slot + 1) for slot in range(2)]
        sequences[greedy] = HandSequence([5])
        found = draw(sequences, logits, sampler)
        assert found[greedy].token_id == int(logits[greedy].argmax())
        assert found[sampled].token_id == first[sampled].token_id


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=0.9)], ids=["greedy", "sampled"])
def test_evidence_ends_after_eight_tokens_for_those_that_have_so_many(params: SamplingParams) -> None:
    sampler, sequences = make_sampler(3), [HandSequence([5], params, seed=slot) for slot in range(3)]
    sequences[0] = HandSequence([5] * 10, params, num_prompt_tokens=3)
    sequences[2] = HandSequence([5], replace(params, logprobs=2))
    draw(sequences, logits_for(3), sampler)
    work = [
        Work(slot, sequence, len(sequence.token_ids) - 1, 1, True, False) for slot, sequence in enumerate(sequences)
    ]
    for position in range(12):
        found, _ = sampler.sample(work, logits_for(3, position))
        generated_by = [len(sequence.token_ids) - sequence.num_prompt_tokens for sequence in sequences]
        assert [found[slot].entropy is not None for slot in range(3)] == [count < 8 for count in generated_by]
        assert [len(found[slot].top) for slot in range(3)] == [0, 0, 2]
        for slot, sequence in enumerate(sequences):
            raw = logits_for(3, position)[slot].log_softmax(dim=0)
            assert found[slot].logprob == pytest.approx(float(raw[found[slot].token_id]), abs=1e-4)
            assert found[slot].rank == 1 + int((raw > raw[found[slot].token_id]).sum())
            sequence.token_ids.append(7)


def test_an_id_outside_the_vocabulary_is_a_fault_of_its_row() -> None:
    sampler = make_sampler()
    work = []
    for slot, params in enumerate((replace(GREEDY, logit_bias={VOCAB + 4: 1.0}), GREEDY)):
        sequence = HandSequence([5], params)
        sampler.admit(slot, sequence)
        work.append(Work(slot, sequence, 0, 1, True, True))
    tokens, faults = sampler.sample(work, logits_for(2))
    assert (list(tokens), list(faults)) == ([1], [0])


def test_allowed_ids_forbid_all_others() -> None:
    row = processed(HandSequence([5], SamplingParams(allowed_token_ids=(3, 4))))
    assert row.isfinite().nonzero().flatten().tolist() == [3, 4]


@pytest.mark.parametrize(
    ("output", "banned"),
    [([], [9]), ([6], [9]), ([6, 7], [8, 9]), ([7, 6], [9])],
    ids=["none", "half", "lead", "order"],
)
def test_bad_words_are_banned_at_their_last_token(output: list[int], banned: list[int]) -> None:
    sequence = generated([6, 7], output, SamplingParams())
    sequence.bad_word_ids = ((6, 7, 8), (9,))
    assert processed(sequence).isinf().nonzero().flatten().tolist() == banned


@pytest.mark.parametrize(("count", "ends"), [(0, False), (2, False), (3, True)])
def test_min_tokens_forbids_every_ending_until_then(count: int, ends: bool) -> None:
    params = SamplingParams(min_tokens=3, stop_token_ids=(7,))
    row = processed(generated([5], [9] * count, params))
    assert row[[2, 7]].isfinite().tolist() == [ends, ends]


def test_repetition_counts_prompt_and_output() -> None:
    row = torch.ones(VOCAB)
    row[6] = -1.0
    out = processed(generated([5, 6], [7], SamplingParams(repetition_penalty=2.0)), row)
    assert out[[5, 6, 7, 8]].tolist() == [0.5, -2.0, 0.5, 1.0]


def test_presence_and_frequency_count_the_output_only() -> None:
    params = SamplingParams(presence_penalty=1.0, frequency_penalty=0.25)
    out = processed(generated([5, 5, 6], [6, 7, 7], params))
    assert out[[5, 6, 7, 8]].tolist() == [0.0, -1.25, -1.5, 0.0]


def test_penalties_are_not_counted_twice_when_a_row_runs_again() -> None:
    sequence = generated([5], [7], SamplingParams(frequency_penalty=1.0))
    processor = RowProcessor(sequence, EOS, CPU)
    first, second = torch.zeros(1, VOCAB), torch.zeros(1, VOCAB)
    penalize(OPS, first, [(0, processor)])
    penalize(OPS, second, [(0, processor)])
    assert second[0, 7] == -1.0


def test_rows_are_penalized_together_each_by_its_own_numbers() -> None:
    first = RowProcessor(generated([5], [7], SamplingParams(frequency_penalty=1.0)), EOS, CPU)
    second = RowProcessor(generated([7], [8, 8], SamplingParams(presence_penalty=0.5)), EOS, CPU)
    rows = torch.zeros(3, VOCAB)
    penalize(OPS, rows, [(0, first), (2, second)])
    assert rows.nonzero().tolist() == [[0, 7], [2, 8]]
    assert rows[[0, 2], [7, 8]].tolist() == [-1.0, -0.5]


def test_bias_comes_before_penalties() -> None:
    params = SamplingParams(logit_bias={7: 4.0}, repetition_penalty=2.0)
    assert processed(generated([7], [], params))[7] == 2.0


def test_masks_survive_bias() -> None:
    params = SamplingParams(allowed_token_ids=(3,), logit_bias={9: 100.0})
    assert processed(HandSequence([5], params))[9] == float("-inf")


def test_counts_grow_past_their_first_size() -> None:
    counts = TokenCounts(num_prompt_tokens=100)
    counts.catch_up(list(range(300)))
    ids, generated_counts = counts.arrays()
    assert ids.tolist() == list(range(300))
    assert generated_counts.sum() == 200


PLAIN: list[tuple[str, Callable[[], Any]]] = [
    ("temperature", lambda: HandSequence([5], SamplingParams(temperature=0.3, top_p=0.5, top_k=4, min_p=0.1))),
    ("logprobs", lambda: HandSequence([5], SamplingParams(logprobs=3))),
    ("stop", lambda: HandSequence([5], SamplingParams(stop=("x",), stop_token_ids=(4,)))),
]


@pytest.mark.parametrize("make", [make for _, make in PLAIN], ids=[name for name, _ in PLAIN])
def test_common_requests_take_the_path_without_processors(make: Callable[[], HandSequence]) -> None:
    assert not needs_processing(make())
