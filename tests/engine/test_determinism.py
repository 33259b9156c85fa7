"""`deterministic` mode: a seed gives the same tokens alone, in any batch, chunking and cache state."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import ChoiceResult, EngineConfig, GenerationRequest, LLMEngine, SamplingParams, SchedulingHints
from tests.fakes.demo_models import SMALL, demo_model
from tests.fakes.small_model import save_small_llama

SAMPLED = SamplingParams(
    temperature=0.9, top_p=0.95, top_k=50, seed=1234, max_tokens=24, ignore_eos=True, frequency_penalty=0.3
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    save_small_llama(path)
    return path


@pytest.fixture
def start() -> Iterator[Callable[..., LLMEngine]]:
    engines: list[LLMEngine] = []

    def make(model: Path, **changes: Any) -> LLMEngine:
        settings = {"dtype": "bfloat16", "block_size": 4, "max_model_len": 72, "num_kv_blocks": 1400, **changes}
        engines.append(
            LLMEngine(
                EngineConfig(str(model), deterministic=True, device="cpu", cache_salt_required=False, **settings),
                draw_seed=lambda: 7,
            )
        )
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def prompts_of(count: int, vocab: int = 256) -> list[tuple[int, ...]]:
    rng = random.Random(9)
    return [tuple(rng.randrange(vocab) for _ in range(rng.randint(5, 40))) for _ in range(count)]


def others(count: int, vocab: int = 256) -> list[GenerationRequest]:
    """A crowd of every kind: greedy and sampled, seeded and not, long and short."""
    rng = random.Random(3)
    kinds = (
        SamplingParams(temperature=0.0, max_tokens=20),
        SamplingParams(temperature=1.2, max_tokens=12),
        SamplingParams(temperature=0.7, top_p=0.8, seed=1234, max_tokens=24),
        SamplingParams(temperature=1.0, min_p=0.05, repetition_penalty=1.2, max_tokens=16, logprobs=3),
    )
    prompts = [tuple(rng.randrange(vocab) for _ in range(rng.randint(1, 40))) for _ in range(count)]
    return [GenerationRequest(f"other{i}", prompt, kinds[i % 4]) for i, prompt in enumerate(prompts)]


def run(engine: LLMEngine, prompt: tuple[int, ...], crowd: list[GenerationRequest], name: str) -> ChoiceResult:
    """Mine yields to everybody where the policy knows priorities, so that a tight pool preempts it."""
    mine = GenerationRequest(name, prompt, SAMPLED, scheduling=SchedulingHints(priority=5))
    middle = len(crowd) // 2
    results = engine.generate([*crowd[:middle], mine, *crowd[middle:]])
    return results[middle].choices[0]


def tokens(engine: LLMEngine, prompt: tuple[int, ...], crowd: list[GenerationRequest], name: str) -> list[int]:
    return run(engine, prompt, crowd, name).token_ids


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_seed_gives_the_same_tokens_alone_in_a_batch_in_chunks_and_cached(
    start: Callable[..., LLMEngine], folder: Path, dtype: str
) -> None:
    plain = start(folder, dtype=dtype, enable_prefix_caching=False)
    cells = {
        "cached": start(folder, dtype=dtype),
        "chunks of 1": start(folder, dtype=dtype, long_prefill_token_threshold=1),
        "chunks of 7": start(folder, dtype=dtype, long_prefill_token_threshold=7),
        "small budget": start(folder, dtype=dtype, max_num_batched_tokens=16),
    }
    for index, prompt in enumerate(prompts_of(4)):
        expected = tokens(plain, prompt, [], f"alone{index}")
        assert tokens(plain, prompt, others(64), f"crowd{index}") == expected
        for name, engine in cells.items():
            assert tokens(engine, prompt, others(64), f"crowd{index}") == expected, name
            assert tokens(engine, prompt, [], f"alone{index}") == expected, name
    assert cells["cached"].stats().prefix_hits > 0


def test_preemption_changes_no_token(start: Callable[..., LLMEngine], folder: Path) -> None:
    plain = start(folder)
    preemptions = 0
    for index, prompt in enumerate(prompts_of(6)):
        tight = start(folder, num_kv_blocks=40, scheduling_policy="priority")
        choice = run(tight, prompt, others(5), f"tight{index}")
        assert choice.token_ids == tokens(plain, prompt, [], f"alone{index}")
        assert choice.signals is not None
        preemptions += choice.signals.preemptions
    assert preemptions > 0


def test_greedy_answers_do_not_depend_on_the_load_in_half_precision(
    start: Callable[..., LLMEngine], folder: Path
) -> None:
    engine = start(folder)
    greedy = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    prompts = prompts_of(16)
    alone = [engine.generate([GenerationRequest(f"a{i}", p, greedy)])[0] for i, p in enumerate(prompts)]
    together = engine.generate([GenerationRequest(f"b{i}", p, greedy) for i, p in enumerate(prompts)])
    for one, other in zip(alone, together, strict=True):
        assert one.choices[0].token_ids == other.choices[0].token_ids
        assert one.choices[0].signals is not None
        assert other.choices[0].signals is not None
        assert one.choices[0].signals.mean_logprob == other.choices[0].signals.mean_logprob


def test_two_seeds_give_different_tokens(start: Callable[..., LLMEngine], folder: Path) -> None:
    engine = start(folder)
    results = engine.generate(
        [
            GenerationRequest(str(seed), (1, 2, 3), SamplingParams(temperature=1.0, seed=seed, max_tokens=16))
            for seed in range(6)
        ]
    )
    assert len({tuple(r.choices[0].token_ids) for r in results}) == 6


@pytest.mark.models
@pytest.mark.timeout(600)
def test_the_demo_model_gives_the_same_tokens_alone_and_in_a_batch_of_64(start: Callable[..., LLMEngine]) -> None:
    engine = start(demo_model(SMALL), block_size=16, max_model_len=128, num_kv_blocks=600)
    encode: Any = engine.tokenizer
    prompt = tuple(encode.apply_chat_template([{"role": "user", "content": "¿Qué es una esclusa?"}]))
    alone = tokens(engine, prompt, [], "alone")
    assert tokens(engine, prompt, others(64, 40_000), "crowd") == alone
