"""`AsyncEngine` over the real runner and the small demo model: what needs real words and a head with sense."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engine import AsyncEngine, EngineConfig, EngineFault, FinishReason, GenerationRequest, Grammar, SamplingParams
from tests.fakes.demo_models import SMALL, demo_model
from tests.fakes.engines import collect, text_of, tokens_of, until
from tests.fakes.small_model import save_small_llama

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def demo() -> AsyncIterator[AsyncEngine]:
    path = demo_model(SMALL)
    engine = AsyncEngine(
        EngineConfig(str(path), device="cpu", max_model_len=512, num_kv_blocks=256, max_num_batched_tokens=256)
    )
    await engine.start()
    yield engine
    await engine.close()


def chat(engine: AsyncEngine, request_id: str, question: str, **sampling: Any) -> GenerationRequest:
    ids = engine.tokenizer.apply_chat_template([{"role": "user", "content": question}])
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 60, **sampling})
    return GenerationRequest(request_id, tuple(ids), params, cache_salt=b"tenant")


@pytest.mark.models
async def test_structured_answers_of_many_kinds_run_together(demo: AsyncEngine) -> None:
    question = "Invent a person."
    schema = demo.generate(chat(demo, "schema", question, grammar=Grammar("json_schema", PERSON), max_tokens=120))
    sampled = demo.generate(
        chat(demo, "n", question, grammar=Grammar("json_schema", PERSON), n=2, temperature=1.0, seed=3, max_tokens=120)
    )
    choice = demo.generate(chat(demo, "choice", "Is water wet?", grammar=Grammar("choice", ["yes", "no"])))
    cut = demo.generate(chat(demo, "cut", question, grammar=Grammar("json_schema", PERSON), max_tokens=4))
    free = demo.generate(chat(demo, "free", "What is the capital of France?"))
    assert set(json.loads(text_of(await collect(schema)))) == {"name", "age"}
    events = await collect(sampled)
    for index in range(2):
        assert set(json.loads(text_of(events, index))) == {"name", "age"}
    assert text_of(await collect(choice)) in {"yes", "no"}
    assert (await collect(cut))[-1].finish_reason is FinishReason.LENGTH
    assert "Paris" in text_of(await collect(free))


@pytest.mark.models
async def test_concatenated_deltas_equal_the_tokenizer_s_full_decode(demo: AsyncEngine) -> None:
    for index, question in enumerate(("Escribe tres emojis 🎉", "日本語で挨拶してください", "Di «ñandú»")):
        events = await collect(demo.generate(chat(demo, str(index), question, temperature=1.0, seed=index)))
        assert text_of(events) == demo.tokenizer.decode(tokens_of(events), skip_special_tokens=True)


@pytest.mark.models
async def test_a_score_leaves_its_prefill_to_the_following_generate(demo: AsyncEngine) -> None:
    request = chat(demo, "score", "Explain in one sentence why the sky is blue, for a child of five years.")
    score = await demo.score(request)
    assert score.first_entropy > 0
    assert 0 <= score.first_margin <= 1
    assert score.prompt_mean_logprob is not None
    assert score.prompt_mean_logprob < 0
    events = await collect(
        demo.generate(
            chat(demo, "gen", "Explain in one sentence why the sky is blue, for a child of five years.", max_tokens=2)
        )
    )
    usage = events[-1].usage
    assert usage is not None
    assert usage.cached_tokens == (usage.prompt_tokens - 1) // 16 * 16


@pytest.mark.models
async def test_embeddings_have_unit_length_and_do_not_depend_on_chunks(demo: AsyncEngine) -> None:
    texts = ["una esclusa", "a canal lock", "x " * 300]
    vectors = await demo.embed([demo.tokenizer.encode(text) for text in texts])
    assert all(sum(v * v for v in vector) == pytest.approx(1, abs=1e-3) for vector in vectors)
    alone = await demo.embed([demo.tokenizer.encode(texts[0])])
    assert sum(a * b for a, b in zip(alone[0], vectors[0], strict=True)) > 0.999


async def test_sleep_and_wake_keep_the_answers(tmp_path: Path) -> None:
    save_small_llama(tmp_path)
    engine = AsyncEngine(
        EngineConfig(str(tmp_path), dtype="float32", device="cpu", num_kv_blocks=64, cache_salt_required=False)
    )
    await engine.start()
    request = GenerationRequest("a", (1, 2, 3), SamplingParams(temperature=0.0, max_tokens=8))
    before = tokens_of(await collect(engine.generate(request)))
    await engine.sleep()
    await engine.wake()
    assert tokens_of(await collect(engine.generate(request))) == before
    await engine.close()


async def test_values_that_are_not_finite_end_the_request_and_are_not_served_from_the_cache(tmp_path: Path) -> None:
    save_small_llama(tmp_path)
    engine = AsyncEngine(
        EngineConfig(str(tmp_path), dtype="float32", device="cpu", num_kv_blocks=64, cache_salt_required=False)
    )
    await engine.start()
    runner: Any = engine._model.runner
    prompt = tuple(range(40))
    await collect(engine.generate(GenerationRequest("warm", prompt, SamplingParams(temperature=0.0, max_tokens=1))))
    runner._caches[0].value.fill_(float("nan"))
    with pytest.raises(EngineFault):
        await collect(engine.generate(GenerationRequest("bad", prompt, SamplingParams(temperature=0.0, max_tokens=4))))
    runner._caches[0].value.fill_(0.0)
    again = await collect(
        engine.generate(GenerationRequest("b", prompt, SamplingParams(temperature=0.0, max_tokens=4)))
    )
    assert again[-1].usage is not None
    assert again[-1].usage.cached_tokens == 0
    await until(lambda: engine.stats().kv.free_blocks == 64)
    await engine.close()
