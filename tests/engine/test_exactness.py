"""Greedy answers equal Hugging Face's, token by token, however the scheduler cuts, caches, preempts and batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import EngineConfig, EngineFault, GenerationRequest, LLMEngine, SamplingParams, SchedulingHints
from engine.scheduling.policy import DECODE_COST
from engine.serving.core import Submission
from engine.step import Step, StepResult
from tests.fakes.demo_models import SMALL, demo_model
from tests.fakes.small_model import save_small_llama

NEW_TOKENS = 24
CHUNKS = (1, 7, 64, 4096)
TINY, LARGE = 20, 700
"""Blocks of 4 tokens: the longest prompt and its answer need 16."""


def draw_prompts() -> list[tuple[int, ...]]:
    """100 prompts; every fourth repeats the beginning of the one before, at and around a block edge."""
    rng = random.Random(1)
    prompts: list[tuple[int, ...]] = []
    for index in range(100):
        fresh = [rng.randrange(256) for _ in range(rng.randint(1, 40))]
        if index % 4 == 3:
            fresh = [*prompts[-1][: rng.choice((4, 8, 15, 16, 17))], *fresh][:40]
        prompts.append(tuple(fresh))
    return prompts


PROMPTS = draw_prompts()


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    """The model's folder and Hugging Face's greedy answers."""
    folder = tmp_path_factory.mktemp("llama")
    reference = save_small_llama(folder)
    answers = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            output = reference.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False
            )
        answers.append(output[0, len(prompt) :].tolist())
    return folder, answers


@pytest.fixture
def start() -> Iterator[Callable[..., LLMEngine]]:
    engines: list[LLMEngine] = []

    def make(model: Path, **changes: Any) -> LLMEngine:
        settings = {"block_size": 4, "max_model_len": 72, "cache_salt_required": False, "device": "cpu", **changes}
        engines.append(LLMEngine(EngineConfig(str(model), dtype="float32", **settings)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def requests_of(prompts: list[tuple[int, ...]], name: str, **sampling: Any) -> list[GenerationRequest]:
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": NEW_TOKENS, **sampling})
    return [GenerationRequest(f"{name}{i}", prompt, params) for i, prompt in enumerate(prompts)]


def answers_of(engine: LLMEngine, requests: list[GenerationRequest], alone: bool) -> list[list[int]]:
    batches = [[request] for request in requests] if alone else [requests]
    results = [result for batch in batches for result in engine.generate(batch)]
    assert [result.error for result in results] == [None] * len(results)
    return [result.choices[0].token_ids for result in results]


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "batch"])
@pytest.mark.parametrize("blocks", [TINY, LARGE], ids=["tiny-pool", "large-pool"])
@pytest.mark.parametrize("caching", [True, False], ids=["cache", "no-cache"])
@pytest.mark.parametrize("chunk", CHUNKS, ids=lambda c: f"chunk-{c}")
def test_greedy_answers_equal_hugging_face(
    start: Callable[..., LLMEngine],
    small_model: tuple[Path, list[list[int]]],
    chunk: int,
    caching: bool,
    blocks: int,
    alone: bool,
) -> None:
    folder, expected = small_model
    engine = start(folder, long_prefill_token_threshold=chunk, enable_prefix_caching=caching, num_kv_blocks=blocks)
    for attempt in ("cold", "warm") if caching else ("cold",):
        assert answers_of(engine, requests_of(PROMPTS, attempt), alone) == expected
    stats = engine.stats()
    assert (stats.preemptions > 0) == (blocks == TINY and not alone)
    assert (stats.prefix_hits > 0) == caching
    engine.core.scheduler.check_integrity()
    assert stats.kv.free_blocks == blocks


def test_unused_kv_slots_full_of_nan_change_nothing(
    start: Callable[..., LLMEngine], small_model: tuple[Path, list[list[int]]]
) -> None:
    folder, expected = small_model
    engine = start(folder, num_kv_blocks=60)
    runner: Any = engine.model.runner
    for cache in runner._caches:
        cache.key.fill_(float("nan"))
        cache.value.fill_(float("nan"))
    assert answers_of(engine, requests_of(PROMPTS, "nan"), alone=False) == expected


def test_repeating_a_failed_step_changes_no_answer_of_the_innocent(
    start: Callable[..., LLMEngine], small_model: tuple[Path, list[list[int]]]
) -> None:
    """The step fails after the kernels and the sampler ran: the worst moment to run it again."""
    folder, expected = small_model
    engine = start(folder, num_kv_blocks=LARGE, long_prefill_token_threshold=7)
    runner: Any = engine.model.runner
    execute = runner.execute

    def fail_afterwards(step: Step) -> StepResult:
        result: StepResult = execute(step)
        if any(work.sequence.request_id == "bad3" and work.sample for work in step.work):
            raise RuntimeError("fault behind the kernels")
        return result

    runner.execute = fail_afterwards
    penalties = {"frequency_penalty": 0.5, "repetition_penalty": 1.1, "presence_penalty": 0.2}
    good, bad = requests_of(PROMPTS[:20], "good"), requests_of(PROMPTS[20:24], "bad")
    penalized = requests_of(PROMPTS[:20], "pen", **penalties)
    results = engine.generate([*good, *bad, *penalized])
    assert [r.choices[0].token_ids for r in results[:20]] == expected[:20]
    assert [r.request_id for r in results if r.error is not None] == ["bad3"]
    assert isinstance(results[23].error, EngineFault)
    plain = start(folder, num_kv_blocks=LARGE)
    again = plain.generate(requests_of(PROMPTS[:20], "pen", **penalties))
    assert [r.choices[0].token_ids for r in results[24:]] == [r.choices[0].token_ids for r in again]


def test_two_tenants_share_a_real_engine_alike(
    start: Callable[..., LLMEngine], small_model: tuple[Path, list[list[int]]]
) -> None:
    folder, _ = small_model
    engine = start(folder, num_kv_blocks=LARGE, max_num_seqs=8, max_num_batched_tokens=64, enable_prefix_caching=False)
    requests = {
        share: [
            replace(r, scheduling=SchedulingHints(share)) for r in requests_of(PROMPTS * times, share, ignore_eos=True)
        ]
        for share, times in (("heavy", 10), ("light", 1))
    }
    for request in [*requests["heavy"], *requests["light"]]:
        engine.core.add(Submission(request, NEW_TOKENS, seed=0))
    waiting = engine.core.scheduler.waiting
    while any(sequence.share_key == "light" for sequence in waiting.all()):
        engine.core.step()
    served = {name: s.prompt_tokens + DECODE_COST * s.generated_tokens for name, s in engine.stats().shares}
    assert 0.9 < served["heavy"] / served["light"] < 1.1


def test_prompt_logprobs_equal_a_full_forward_under_chunks_and_a_warm_cache(
    start: Callable[..., LLMEngine], small_model: tuple[Path, list[list[int]]], tmp_path: Path
) -> None:
    folder, _ = small_model
    reference = save_small_llama(tmp_path)
    prompt = PROMPTS[7]
    with torch.inference_mode():
        logprobs = reference(torch.tensor([prompt])).logits[0].log_softmax(-1)
    expected = [logprobs[i, token].item() for i, token in enumerate(prompt[1:])]
    for chunk in CHUNKS:
        engine = start(folder, num_kv_blocks=LARGE, long_prefill_token_threshold=chunk)
        for attempt in ("cold", "warm"):
            (result,) = engine.generate(requests_of([prompt], attempt, prompt_logprobs=2, max_tokens=1))
            assert result.prompt_logprobs is not None
            assert result.prompt_logprobs[0] is None
            found = [entry.logprob for entry in result.prompt_logprobs if entry is not None]
            assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.models
@pytest.mark.timeout(600)
def test_the_demo_model_answers_alike_under_chunks_cache_preemption_and_batching(
    start: Callable[..., LLMEngine],
) -> None:
    path = demo_model(SMALL)
    large = start(path, num_kv_blocks=400, block_size=16, max_model_len=128)
    questions = (
        "What is the capital of France?",
        "¿Qué es una esclusa?",
        "List three fruits.",
        "2 + 2 =",
        "日本の首都はどこですか？",
        "Why is the sky blue? 🌤️",
    )
    tokenizer: Any = large.tokenizer
    prompts = [tuple(tokenizer.apply_chat_template([{"role": "user", "content": q}])) for q in questions]
    expected = answers_of(large, requests_of(prompts, "plain"), alone=True)
    assert answers_of(large, requests_of(prompts, "warm"), alone=False) == expected
    tight = start(path, num_kv_blocks=32, block_size=4, max_model_len=128, long_prefill_token_threshold=7)
    assert answers_of(tight, requests_of(prompts, "tight"), alone=False) == expected
    assert tight.stats().preemptions > 0
