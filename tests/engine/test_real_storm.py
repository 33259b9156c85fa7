"""Every feature at once on a real small model: a storm in a pool far too small gives what each request gives alone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from engine import (
    AsyncEngine,
    EngineConfig,
    EngineState,
    EngineUnavailable,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    Grammar,
    LLMEngine,
    SamplingParams,
    SchedulingHints,
)
from tests.fakes.engines import collect, text_of, tokens_of, until
from tests.fakes.small_model import save_small_llama

NUMBER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
Start = Callable[..., Awaitable[AsyncEngine]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    save_small_llama(path)
    return path


def settings_of(folder: Path, **changes: Any) -> EngineConfig:
    fixed = {"dtype": "float32", "device": "cpu", "block_size": 4, "max_model_len": 96, "deterministic": True}
    return EngineConfig(str(folder), **{**fixed, "num_kv_blocks": 400, **changes})


@pytest.fixture
async def start(folder: Path) -> AsyncIterator[Start]:
    engines: list[AsyncEngine] = []

    async def make(**changes: Any) -> AsyncEngine:
        engines.append(AsyncEngine(settings_of(folder, **changes)))
        await engines[-1].start()
        return engines[-1]

    yield make
    for engine in engines:
        await engine.close()


def any_request(rng: random.Random, name: str) -> GenerationRequest:
    """A request that uses some of everything; grammars exclude what contradicts them."""
    most = rng.randint(1, 24)
    kind = rng.random()
    grammar, free = None, dict[str, Any]()
    if kind < 0.15:
        grammar = Grammar("regex", "[a-z]{2,12}x?")
    elif kind < 0.25:
        grammar = Grammar("json_schema", NUMBER)
    else:
        free = {"min_tokens": rng.choice((0, 0, rng.randint(0, most))), "bad_words": rng.choice(((), ("a", "bc")))}
    sampling = SamplingParams(
        temperature=rng.choice((0.0, 0.8, 1.5)),
        seed=rng.randrange(2**63),
        max_tokens=most,
        n=rng.choice((1, 1, 2, 3)),
        top_p=rng.choice((1.0, 0.9)),
        top_k=rng.choice((0, -1, 5)),
        min_p=rng.choice((0.0, 0.02)),
        frequency_penalty=rng.choice((0.0, 0.5, -1.0)),
        presence_penalty=rng.choice((0.0, 0.4)),
        repetition_penalty=rng.choice((1.0, 1.3)),
        stop=rng.choice(((), ("a",), ("Q", "zz"))),
        logprobs=rng.choice((None, 0, 3)),
        prompt_logprobs=rng.choice((None, None, None, 1)),
        ignore_eos=rng.random() < 0.3,
        logit_bias=rng.choice(({}, {40: 5.0, 256: -100.0})),
        grammar=grammar,
        **free,
    )
    prompt = [7] * rng.choice((0, 4, 9)) + [rng.randrange(250) for _ in range(rng.randint(1, 30))]
    return GenerationRequest(
        name,
        tuple(prompt),
        sampling,
        cache_salt=rng.choice((b"x", b"y")),
        scheduling=SchedulingHints(rng.choice("abc"), priority=rng.randrange(3)),
    )


def seen(events: list[GenerationEvent], index: int) -> tuple[Any, ...]:
    """All that one choice showed its reader, but for times and the pieces that its text came in."""
    mine = [event for event in events if event.index == index]
    last = mine[-1]
    assert last.signals is not None
    return (
        tokens_of(mine, index),
        text_of(mine, index),
        [entry for event in mine for entry in event.logprobs],
        [event.prompt_logprobs for event in mine if event.prompt_logprobs is not None],
        (last.finish_reason, last.stop_reason),
        (last.signals.mean_logprob, last.signals.min_logprob, last.signals.first_entropies, last.signals.seed),
    )


async def hang_up(engine: AsyncEngine, rng: random.Random, request: GenerationRequest) -> None:
    stream, left = engine.generate(request), rng.randint(0, 5)
    if rng.random() < 0.3:
        engine.abort(request.request_id, "administrator")
    async for _ in stream:
        left -= 1
        if left < 0:
            await stream.aclose()


@pytest.mark.parametrize("policy", ["fair", "priority", "fcfs"])
async def test_a_storm_gives_every_request_what_it_gets_alone(start: Start, policy: str) -> None:
    rng = random.Random(policy)
    alone = await start(enable_prefix_caching=False)
    tight = {"num_kv_blocks": 30, "max_num_seqs": 6, "max_num_batched_tokens": 24, "starvation_bound_s": 0.05}
    stormy = await start(scheduling_policy=policy, **tight)
    requests = [any_request(rng, f"r{i}") for i in range(60)]
    answers: list[Any] = await asyncio.gather(
        *(collect(stormy.generate(request)) for request in requests),
        *(hang_up(stormy, rng, any_request(rng, f"victim{i}")) for i in range(40)),
        *(stormy.embed([[1, 2, i]]) for i in range(8)),
    )
    for request, events in zip(requests, answers, strict=False):
        expected = await collect(alone.generate(request))
        for index in range(request.sampling.n):
            assert seen(events, index) == seen(expected, index), request
        assert events[-1].usage is not None
        assert expected[-1].usage is not None
        assert events[-1].usage.completion_tokens == expected[-1].usage.completion_tokens
    await stormy.drain()
    stats = stormy.stats()
    assert stats.preemptions > 0
    assert stats.prefix_hits > 0
    assert stats.kv.free_blocks == 30
    assert stats.restarts == stats.step_faults == 0


async def test_the_choices_of_a_request_are_what_their_seeds_give_alone(start: Start) -> None:
    engine = await start()
    sampling: dict[str, Any] = {"temperature": 1.0, "max_tokens": 12, "logprobs": 2, "ignore_eos": True}
    together = await collect(
        engine.generate(GenerationRequest("n", (1, 2, 3), SamplingParams(n=3, seed=5, **sampling), cache_salt=b"t"))
    )
    for index in range(3):
        params = SamplingParams(seed=5 + index, **sampling)
        one = await collect(engine.generate(GenerationRequest(f"n{index}", (1, 2, 3), params, cache_salt=b"t")))
        assert seen(one, 0) == seen(together, index)


async def test_a_grammar_with_choices_stop_and_logprobs_streams_token_by_token(start: Start) -> None:
    engine = await start()
    params = SamplingParams(
        n=4, seed=5, temperature=1.0, max_tokens=30, logprobs=2, stop=("cc", "b"), grammar=Grammar("regex", "[a-c]{10}")
    )
    events = await collect(engine.generate(GenerationRequest("g", (1, 2, 3), params, cache_salt=b"t")))
    for index in range(4):
        mine = [event for event in events if event.index == index]
        assert all(len(event.token_ids) == 1 == len(event.logprobs) for event in mine)
        assert [event.finish_reason for event in mine] == [None] * (len(mine) - 1) + [FinishReason.STOP]
        assert not set(text_of(events, index)) - {"a", "c"}
        assert "cc" not in text_of(events, index)
    assert [event.usage for event in events[:-1]] == [None] * (len(events) - 1)


async def test_a_score_is_found_by_generate_and_by_nobody_of_another_salt(start: Start) -> None:
    engine = await start()
    prompt = tuple(range(40))
    score = await engine.score(GenerationRequest("s", prompt, cache_salt=b"mine"))
    assert score.cached_tokens == 0
    params = SamplingParams(temperature=0.0, max_tokens=2)
    for salt, cached in ((b"other", 0), (b"mine", 36)):
        events = await collect(engine.generate(GenerationRequest(f"g{cached}", prompt, params, cache_salt=salt)))
        assert events[-1].usage is not None
        assert events[-1].usage.cached_tokens == cached
    again = await engine.score(GenerationRequest("s2", prompt, cache_salt=b"mine"), likelihood=False)
    assert (again.cached_tokens, again.first_entropy) == (36, score.first_entropy)


async def test_echo_reads_no_cache_and_equals_the_cold_answer(start: Start) -> None:
    engine = await start()
    prompt, found = tuple(range(40)), []
    for attempt, most in (("cold", 3), ("warm", 3), ("echo only", 0)):
        params = SamplingParams(temperature=0.0, max_tokens=most, prompt_logprobs=2, n=2)
        events = await collect(engine.generate(GenerationRequest(attempt, prompt, params, cache_salt=b"t")))
        found += [event.prompt_logprobs for event in events if event.prompt_logprobs is not None]
        assert events[-1].usage is not None
        assert (events[-1].usage.cached_tokens, events[-1].usage.completion_tokens) == (0, 2 * most)
    assert len(found) == 3
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 40


async def test_choices_that_share_their_prompt_count_it_and_its_hits_once(start: Start) -> None:
    engine = await start()
    prompt, cached = tuple(range(40)), 0
    for attempt in range(2):
        params = SamplingParams(temperature=1.0, max_tokens=2, n=4)
        events = await collect(engine.generate(GenerationRequest(f"r{attempt}", prompt, params, cache_salt=b"t")))
        assert events[-1].usage is not None
        cached += events[-1].usage.cached_tokens
    await engine.drain()
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.prefix_queries, stats.prefix_hits) == (80, 80, cached)
    assert cached == 36


async def test_sleep_under_load_ends_everybody_well_and_wakes_to_the_same_answers(start: Start) -> None:
    engine = await start(max_num_seqs=4)
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=20, ignore_eos=True)
    requests = [GenerationRequest(f"r{i}", (i, 2, 3), params, cache_salt=b"t") for i in range(16)]
    streams = [engine.generate(request) for request in requests]
    await engine.sleep()
    before = [await collect(stream) for stream in streams]
    assert {events[-1].finish_reason for events in before} == {FinishReason.LENGTH}
    with pytest.raises(EngineUnavailable):
        engine.generate(requests[0])
    await engine.sleep()
    assert engine.state is EngineState.ASLEEP
    await engine.wake()
    after = await asyncio.gather(*(collect(engine.generate(request)) for request in requests))
    assert [tokens_of(events) for events in after] == [tokens_of(events) for events in before]
    await until(lambda: engine.stats().kv.free_blocks == 400)


FAMILIES: dict[str, Any] = {
    "mistral, every layer windowed": ("Mistral", {"sliding_window": 6, "head_dim": 8}),
    "gemma 3, windowed and full layers": (
        "Gemma3",
        {
            "head_dim": 16,
            "sliding_window": 5,
            "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
}


@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_prefix_found_under_a_sliding_window_changes_nothing(folder: Path, tmp_path: Path, family: str) -> None:
    name, extra = FAMILIES[family]
    torch.manual_seed(1)
    config = getattr(transformers, f"{name}TextConfig" if name == "Gemma3" else f"{name}Config")(
        vocab_size=320,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.25,
        bos_token_id=256,
        eos_token_id=256,
        pad_token_id=256,
        **extra,
    )
    reference = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    reference.save_pretrained(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    rng = random.Random(2)
    shared = [rng.randrange(250) for _ in range(30)]
    prompts = [(*shared[:cut], *(rng.randrange(250) for _ in range(7))) for cut in (30, 30, 17, 4)]
    expected = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            made = reference.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False)
        expected.append(made[0, len(prompt) :].tolist())
    engine = LLMEngine(settings_of(tmp_path, cache_salt_required=False, long_prefill_token_threshold=7))
    params = SamplingParams(temperature=0.0, max_tokens=16)
    results = [engine.generate([GenerationRequest(str(i), p, params)])[0] for i, p in enumerate(prompts)]
    assert [result.choices[0].token_ids for result in results] == expected
    assert [result.usage.cached_tokens for result in results if result.usage is not None] == [0, 28, 16, 4]
    engine.close()
