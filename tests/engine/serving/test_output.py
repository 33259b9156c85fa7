from __future__ import annotations

import pytest

from engine.requests import FinishReason, GenerationRequest
from engine.scheduling.stopping import is_looping
from engine.serving.offline import LLMEngine
from tests.fakes.byte_tokenizer import SPECIAL
from tests.fakes.engines import config, loader_of, request
from tests.fakes.runner import FakeRunner


def engine_of(runner: FakeRunner | None = None, **changes: object) -> LLMEngine:
    return LLMEngine(config(**changes), loader=loader_of(runner or FakeRunner()), draw_seed=lambda: 42)


def spelled(*ids: int) -> FakeRunner:
    return FakeRunner(
        next_token=lambda _, work: ids[
            min(len(work.sequence.token_ids) - work.sequence.num_prompt_tokens, len(ids) - 1)
        ]
    )


def test_results_come_in_the_order_of_requests_with_their_tokens() -> None:
    engine = engine_of()
    results = engine.generate([request(str(i), f"pregunta {i}", max_tokens=3 + i) for i in range(20)])
    assert [r.request_id for r in results] == [str(i) for i in range(20)]
    assert [len(r.choices[0].token_ids) for r in results] == [3 + i for i in range(20)]
    assert all(r.choices[0].token_times == sorted(r.choices[0].token_times) for r in results)


def test_logprobs_hold_the_sampled_token_and_k_alternatives_with_bytes() -> None:
    result = engine_of(spelled(0xC3, 0xB1, 256)).generate([request("a", logprobs=2)])[0]
    first = result.choices[0].logprobs[0]
    assert (first.token_id, first.logprob, first.rank, first.raw) == (0xC3, -0.5, 1, b"\xc3")
    assert [(t.token_id, t.rank) for t in first.top] == [(0xC3, 1), (0xC4, 2)]
    assert len(result.choices[0].logprobs) == len(result.choices[0].token_ids)


def test_no_logprobs_are_sent_unless_asked_for() -> None:
    assert engine_of().generate([request("a", max_tokens=3)])[0].choices[0].logprobs == []


@pytest.mark.parametrize("budget", [1, 3, 64])
def test_prompt_logprobs_cover_every_token_after_the_first_for_any_chunk(budget: int) -> None:
    engine = engine_of(max_num_batched_tokens=budget)
    for attempt in ("cold", "warm"):
        result = engine.generate([request(attempt, "una pregunta", prompt_logprobs=0, max_tokens=2)])[0]
        assert result.prompt_logprobs is not None
        assert result.prompt_logprobs[0] is None
        assert [p.token_id for p in result.prompt_logprobs if p] == list(b"na pregunta")
        assert [p.logprob for p in result.prompt_logprobs if p] == [-float(i) for i in range(11)]


def test_prompt_logprobs_survive_a_preemption_before_the_first_token() -> None:
    runner = FakeRunner(num_blocks=8, block_size=4, max_model_len=32)
    engine = engine_of(runner, long_prefill_token_threshold=2, scheduling_policy="priority")
    prompt = "una pregunta muy larga"
    older = request("older", "abcd", max_tokens=12)
    echo = request("echo", prompt, prompt_logprobs=0, max_tokens=2, priority=5)
    result = engine.generate([older, echo])[1]
    assert result.choices[0].signals is not None
    assert result.choices[0].signals.preemptions > 0
    assert result.prompt_logprobs is not None
    assert [p.token_id for p in result.prompt_logprobs if p] == list(prompt.encode()[1:])
    assert [p.logprob for p in result.prompt_logprobs if p] == [-float(i) for i in range(21)]


def test_echo_without_tokens_ends_with_length_and_counts_none() -> None:
    result = engine_of().generate([request("a", "hola", prompt_logprobs=0, max_tokens=0)])[0]
    assert result.choices[0].finish_reason is FinishReason.LENGTH
    assert result.usage is not None
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (4, 0)
    assert result.prompt_logprobs is not None


def test_special_tokens_are_hidden_unless_asked_for() -> None:
    ids = (104, SPECIAL, 105, 256)
    assert engine_of(spelled(*ids)).generate([request("a")])[0].choices[0].text == "hi"


def test_the_stop_token_shows_no_text_unless_included() -> None:
    runner = spelled(104, 105, 33)
    shown = request("b", stop_token_ids=(33,), include_stop_str_in_output=True)
    hidden = request("a", stop_token_ids=(33,))
    results = engine_of(runner).generate([hidden, shown])
    assert [r.choices[0].text for r in results] == ["hi", "hi!"]
    assert [r.choices[0].stop_reason for r in results] == [33, 33]


def test_a_stop_string_completed_by_the_last_allowed_token_is_a_stop() -> None:
    result = engine_of(spelled(*b"a FIN")).generate([request("a", stop=("FIN",), max_tokens=5)])[0]
    choice = result.choices[0]
    assert (choice.text, choice.finish_reason, choice.stop_reason) == ("a ", FinishReason.STOP, "FIN")


def test_the_seed_that_was_drawn_is_reported_and_reproduces_the_answer() -> None:
    engine = engine_of()
    first = engine.generate([request("a", temperature=1.0, max_tokens=8)])[0].choices[0]
    assert first.signals is not None
    assert first.signals.seed == 42
    again = engine.generate([request("b", temperature=1.0, max_tokens=8, seed=42)])[0].choices[0]
    assert again.token_ids == first.token_ids


def test_cached_tokens_are_reported_on_the_second_run() -> None:
    engine = engine_of()
    prompts = [request(name, "una pregunta larga y repetida", max_tokens=1) for name in ("a", "b")]
    usages = [engine.generate([prompt])[0].usage for prompt in prompts]
    assert [u.cached_tokens for u in usages if u is not None] == [0, 28]


def test_preempted_requests_count_no_hits_and_report_their_preemptions() -> None:
    engine = engine_of(FakeRunner(num_blocks=7, block_size=4))
    results = engine.generate([request(str(i), bytes(range(i * 20, i * 20 + 9)), max_tokens=12) for i in range(4)])
    signals = [r.choices[0].signals for r in results]
    assert sum(s.preemptions for s in signals if s is not None) > 0
    assert all(r.usage is not None and r.usage.cached_tokens == 0 for r in results)
    stats = engine.stats()
    assert (stats.prefix_queries, stats.prefix_hits, stats.prompt_tokens) == (36, 0, 36)


def test_hits_are_counted_per_share() -> None:
    engine = engine_of()
    engine.generate([request("a", "una pregunta larga", share_key="t1", max_tokens=2)])
    engine.generate([request("b", "una pregunta larga", share_key="t2", max_tokens=3)])
    shares = dict(engine.stats().shares)
    assert (shares["t1"].cached_tokens, shares["t2"].cached_tokens) == (0, 16)
    assert (shares["t1"].generated_tokens, shares["t2"].generated_tokens) == (2, 3)


def test_every_token_after_a_choices_first_is_one_gap_and_belongs_to_its_share() -> None:
    engine = engine_of(max_num_seqs=3, max_num_batched_tokens=8)
    lengths = [2, 5, 9, 4, 7]
    asked = [request(str(i), "hola", share_key="ab"[i % 2], max_tokens=n) for i, n in enumerate(lengths)]
    engine.generate([*asked, request("n", "hola", n=2, share_key="c", max_tokens=3)])
    stats = engine.stats()
    gaps = dict(stats.histograms)["inter_token_latency_seconds"]
    assert sum(gaps.counts) == sum(lengths) - len(lengths) + 2 * (3 - 1)
    assert [share.generated_tokens for _, share in sorted(stats.shares)] == [2 + 9 + 7, 5 + 4, 6]
    assert stats.generated_tokens == 33


@pytest.mark.parametrize(
    ("tokens", "looping"),
    [
        ([1] * 16, True),
        ([1] * 15, False),
        ([*range(50), *([7, 8, 9] * 6)], True),
        (list(range(200)), False),
        ([1, 2] * 8 + [3], False),
        (list(range(32)) * 4, True),
        (list(range(33)) * 4, False),
    ],
)
def test_a_tail_that_repeats_itself_is_flagged(tokens: list[int], looping: bool) -> None:
    assert is_looping(tokens) is looping


def test_the_repetition_signal_is_set_for_a_loop() -> None:
    engine = engine_of(spelled(7))
    choice = engine.generate([request("a", max_tokens=40)])[0].choices[0]
    assert choice.signals is not None
    assert choice.signals.repetition


def test_a_request_as_value_is_not_changed_by_running() -> None:
    asked = request("a", max_tokens=3)
    before = GenerationRequest(**{name: getattr(asked, name) for name in asked.__dataclass_fields__})
    engine_of().generate([asked])
    assert asked == before
